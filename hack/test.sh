#!/usr/bin/env bash
# test.sh PACKAGES...: runs all tests with the race detector. Without root it lists the tests that were left out.
set -euo pipefail
GO=${GO:-go}
if [ "$(id -u)" = 0 ]; then
	exec "$GO" test -race -count=1 -timeout 15m "$@"
fi
mkdir -p build
log=build/test.log
echo "running the tests that need no root; everything they say goes to $log"
status=0
"$GO" test -race -count=1 -timeout 15m -v "$@" >"$log" 2>&1 || status=$?
if [ "$status" != 0 ]; then
	# What passed, was skipped or goes on is left out: the rest is what went wrong.
	grep -vE '^ *(=== |--- (PASS|SKIP))' "$log" | tail -n 100
	echo "failed: $log has everything" >&2
else
	grep -E '^(ok|\?)' "$log" || true
fi
skipped=$(grep -oE '^ *--- SKIP: [^ ]+' "$log" | sed 's/.*SKIP: /  /' | sort -u || true)
if [ -n "$skipped" ]; then
	printf '\nnot run (they need root, to use network namespaces, XDP and AF_XDP):\n%s\n' "$skipped"
fi
exit "$status"
