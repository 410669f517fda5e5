#!/usr/bin/env bash
# setup.sh demo|test|vm|lint: checks that what a target needs is there, and installs it on Debian with apt as root.
# Elsewhere it lists what is missing and fails.
set -euo pipefail

# command:Debian package
case $1 in
demo) needs=() ;;
test) needs=(gcc:gcc stdlib.h:libc6-dev ip:iproute2) ;;
vm) needs=(xz:xz-utils) ;;
lint) needs=(gcc:gcc clang:clang llvm-strip:llvm protoc:protobuf-compiler bpf/bpf_helpers.h:libbpf-dev google/protobuf/empty.proto:libprotobuf-dev) ;;
*)
	echo "usage: $0 demo|test|vm|lint" >&2
	exit 2
	;;
esac

if ! command -v "${GO:-go}" >/dev/null; then
	echo "missing: Go 1.26.8 or later" >&2
	exit 1
fi
case $1 in
demo | vm)
	if [ "$(id -u)" != 0 ]; then
		echo "this makes network namespaces and NICs: run it as root" >&2
		exit 1
	fi
	;;
esac

present() {
	case $1 in
	*.h | *.proto) [ -e "/usr/include/$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

packages=()
for need in "${needs[@]}"; do
	present "${need%%:*}" || packages+=("${need##*:}")
done
[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing ${packages[*]}"
	log=$(mktemp)
	if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
		cat "$log" >&2
		exit 1
	fi
	rm -f "$log"
	exit 0
fi
echo "missing, by the names of Debian's packages: ${packages[*]} (make test and make lint install them as root on Debian)" >&2
exit 1
