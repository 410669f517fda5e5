#!/usr/bin/env bash
# test.sh PACKAGES...: runs all tests with the race detector. Without root it lists the tests that were left out.
set -euo pipefail
GO=${GO:-go}
if [ "$(id -u)" = 0 ]; then
	exec "$GO" test -race -count=1 -timeout 15m "$@"
fi
mkdir -p build
status=0
"$GO" test -race -count=1 -timeout 15m -v "$@" >build/test.log 2>&1 || status=$?
grep -E '^(ok|FAIL|panic|---? FAIL|\?)' build/test.log || true
echo
echo "not run (they need root, to use network namespaces, XDP and AF_XDP):"
grep -oE '^ *--- SKIP: [^ ]+' build/test.log | sed 's/.*SKIP: /  /' | sort -u
exit "$status"
