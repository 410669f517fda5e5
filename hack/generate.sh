#!/usr/bin/env bash
# generate.sh DIR: compiles the XDP program and the protobuf API of the checkout in DIR.
set -euo pipefail
GO=${GO:-go}
cd "$1"
# clang for BPF does not look where Debian keeps the architecture's headers.
BPF2GO_CFLAGS="-I/usr/include/$(gcc -print-multiarch)" "$GO" generate ./internal/xdpprog
"$GO" generate ./internal/agentapi
