#!/usr/bin/env bash
# lint.sh: everything that is checked without running the code. A check that could not run says so.
set -euo pipefail
GO=${GO:-go}
step() { printf '== %s\n' "$1"; }

step "go mod tidy"
"$GO" mod tidy -diff
(cd tools && "$GO" mod tidy -diff)
(cd tools/cluster && "$GO" mod tidy -diff)

step "cross-build for arm64, and go vet"
GOARCH=arm64 CGO_ENABLED=0 "$GO" vet ./...
"$GO" vet -tags vm ./test/vm/...
"$GO" vet -tags e2e ./test/e2e/...

step "golangci-lint"
golangci-lint run ./...

step "shell scripts"
for f in hack/*.sh .ci/run; do bash -n "$f"; done

step "generated files"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 -r cp --parents -t "$copy" 2>/dev/null || true
GO="$GO" hack/generate.sh "$copy"
# protoc's version stands in the output, and another clang makes other code.
different() { diff -r -I '^//.*protoc  *v' "$1" "$copy/$1" -x '*.o' -x '*_bpfe[lb].go'; }
different internal/agentapi || { echo "internal/agentapi is not what agent.proto generates: make generate" >&2; exit 1; }
made_with=$(cat internal/xdpprog/clang-version)
have=$(clang -dumpversion | cut -d. -f1)
if [ "$made_with" = "$have" ]; then
	diff -r internal/xdpprog "$copy/internal/xdpprog" || { echo "internal/xdpprog is not what redirect.c generates: make generate" >&2; exit 1; }
else
	echo "not run: comparing the compiled XDP program (made with clang $made_with, this is clang $have); it compiles"
fi

step "govulncheck"
if ! out=$("$GO" tool -modfile=tools/go.mod govulncheck ./... 2>&1); then
	if grep -qiE 'dial tcp|no such host|connection refused|i/o timeout|fetching vulnerabilities|403|404|proxyconnect' <<<"$out"; then
		echo "not run: the vulnerability database cannot be reached"
	else
		echo "$out"
		exit 1
	fi
fi
