#!/usr/bin/env bash
# vm-setup.sh [--refresh]: gets what test/vm boots, once: QEMU 10 or later, and Debian's packaged kernels. What is there
# already is left as it is; --refresh looks for newer kernels. It works on Debian, as root, and changes nothing of apt's
# configuration: the mirror's address comes from the system's own sources, only the suite differs.
#
# In ${AFXDP_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/afxdp-vm} it leaves
#
#   qemu/qemu            runs QEMU
#   kernels/CLASS/       version, vmlinuz and modules of a kernel; CLASS is 6.1, 6.12, 6.18 or newest
#   *.missing            in place of one of them: why it could not be had
#
# Each appears whole or not at all. AFXDP_VM_NEWEST, such as 7.3.4, pins the newest kernel.
set -euo pipefail
shopt -s nullglob

cache=${AFXDP_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/afxdp-vm}
refresh=
case ${1-} in
'') ;;
--refresh) refresh=1 ;;
*)
	echo "usage: $0 [--refresh]" >&2
	exit 2
	;;
esac

mkdir -p "$cache/kernels"
exec 9>"$cache/lock"
flock 9
temp=$(mktemp -d "$cache/temp.XXXXXX")
trap 'rm -rf "$temp"' EXIT

say() { printf 'vm-setup: %s\n' "$*"; }

# missing PATH REASON: says that what belongs at PATH could not be had.
missing() {
	say "not to be had: ${1#"$cache/"}: $2"
	printf '%s\n' "$2" >"$temp/missing"
	mv "$temp/missing" "$1.missing"
}

# place FROM TO: moves a finished directory to its place.
place() {
	rm -rf "$2"
	mv "$1" "$2"
	rm -f "$2.missing"
}

# sources SUITE: one stanza for apt, like the system's own for its release, but of SUITE.
sources() {
	local file
	for file in /etc/apt/sources.list.d/*.sources; do
		awk -v suite="$1" -v codename="$codename" '
			BEGIN { RS = ""; FS = "\n" }
			{
				own = 0
				for (i = 1; i <= NF; i++) if ($i ~ "^Suites:(.* )?" codename "( |$)") own = 1
				if (!own) next
				for (i = 1; i <= NF; i++) {
					if ($i ~ /^#/ || $i ~ /^Components:/) continue
					print ($i ~ /^Suites:/) ? "Suites: " suite "\nComponents: main" : $i
				}
				exit
			}' "$file"
	done >"$temp/sources"
	if [ ! -s "$temp/sources" ]; then
		for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
			[ -e "$file" ] || continue
			sed -nE "s#^deb +(\[.*\] +)?([^ ]+) +$codename +.*#\1\2#p" "$file"
		done | head -1 | while read -r mirror; do
			printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "${mirror##* }" "$1"
		done >"$temp/sources"
	fi
	cat "$temp/sources"
}

# suite SUITE COMMAND...: runs apt-get or apt-cache on SUITE alone, with lists of its own.
suite() {
	local dir=$cache/apt/$1 command=$2
	shift 2
	"$command" -o Dir::Etc::sourcelist="$dir/suite.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/lists" \
		-o Dir::Cache="$dir/cache" -o APT::Default-Release= -o APT::Get::List-Cleanup=0 -o APT::Sandbox::User=root \
		-o APT::Update::Error-Mode=any -o Acquire::Retries=2 "$@"
}

# open_suite SUITE: has apt know SUITE. Its answer is kept, also a no.
declare -A opened
open_suite() {
	if [ -z "${opened[$1]-}" ]; then
		local dir=$cache/apt/$1
		mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
		sources "$1" >"$dir/suite.sources"
		opened[$1]=no
		if [ ! -s "$dir/suite.sources" ]; then
			say "suite $1: apt's sources name no mirror for $codename"
		elif suite "$1" apt-get update -qq >"$dir/log" 2>&1; then
			opened[$1]=yes
		else
			say "suite $1: $(grep -m1 -E '^(E|W|Err)' "$dir/log" | tr '\n' ' ')"
		fi
	fi
	[ "${opened[$1]}" = yes ]
}

# answers SUITE...: says which of them the mirror has.
answers() {
	local s
	for s in "$@"; do
		[ "${opened[$s]-}" = yes ] && printf '%s ' "$s" || printf '%s (not had) ' "$s"
	done
}

# download SUITE DIR PACKAGE...: downloads packages into DIR.
download() {
	local from=$1 dir=$2
	shift 2
	mkdir -p "$dir"
	(cd "$dir" && suite "$from" apt-get -qq download "$@") >"$temp/log" 2>&1 || {
		tail -3 "$temp/log" >&2
		return 1
	}
}

# --- QEMU -------------------------------------------------------------------------------------------------------------

qemu_major() { "$1" --version 2>/dev/null | sed -nE '1s/.*version ([0-9]+).*/\1/p'; }

qemu() {
	[ -x "$cache/qemu/qemu" ] && "$cache/qemu/qemu" --version >/dev/null 2>&1 && return
	local log=$temp/log
	if ! command -v qemu-system-x86_64 >/dev/null || ! command -v xz >/dev/null; then
		say "installing qemu-system-x86 and xz-utils"
		if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			qemu-system-x86 xz-utils; } >"$log" 2>&1; then
			tail -3 "$log" >&2
			missing "$cache/qemu" "apt-get could not install qemu-system-x86"
			return
		fi
	fi
	local dir=$temp/qemu version
	mkdir -p "$dir"
	version=$(qemu_major qemu-system-x86_64)
	if [ "${version:-0}" -ge 10 ]; then
		printf '#!/bin/sh\nexec qemu-system-x86_64 "$@"\n' >"$dir/qemu"
	else
		# A copy of its own; the libraries are those that the system's QEMU brought.
		local from=$codename-backports
		if ! open_suite "$from"; then
			missing "$cache/qemu" "the system's QEMU is ${version:-none}, 10 is needed, and the mirror has no suite $from"
			return
		fi
		say "getting QEMU of $from"
		local packages=() p
		for p in qemu-system-x86 qemu-system-common qemu-system-data seabios; do packages+=("$p/$from"); done
		if ! download "$from" "$temp/deb" "${packages[@]}"; then
			missing "$cache/qemu" "QEMU's packages could not be downloaded from suite $from"
			return
		fi
		for p in "$temp"/deb/*.deb; do dpkg -x "$p" "$dir"; done
		rm -rf "$temp/deb"
		cat >"$dir/qemu" <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
export QEMU_MODULE_DIR="$root/usr/lib/x86_64-linux-gnu/qemu"
exec "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
END
	fi
	chmod +x "$dir/qemu"
	version=$(qemu_major "$dir/qemu")
	if [ "${version:-0}" -lt 10 ]; then
		missing "$cache/qemu" "QEMU ${version:-(does not run)} was found, 10 is needed"
		return
	fi
	place "$dir" "$cache/qemu"
	say "QEMU: $("$cache/qemu/qemu" --version | head -1)"
}

# --- kernels ----------------------------------------------------------------------------------------------------------

# kernel CLASS "VERSION-PATTERN..." SUITE...: gets the newest kernel of the first pattern, an extended regular
# expression, that one of the suites has.
kernel() {
	local class=$1 patterns=$2 dir=$cache/kernels/$1
	shift 2
	[ -z "$refresh" ] && [ -e "$dir/version" ] && return
	local pattern s version best= from= all
	read -ra all <<<"$patterns"
	for pattern in "${all[@]}"; do
		for s in "$@"; do
			open_suite "$s" || continue
			version=$(suite "$s" apt-cache pkgnames linux-image- |
				sed -nE "s/^linux-image-($pattern(\+deb[0-9.]+|-[0-9]+)?-amd64)\$/\1/p" | sort -V | tail -1)
			if [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$best" "$version" | sort -V | tail -1)" = "$version" ] && [ "$best" != "$version" ]; then
				best=$version from=$s
			fi
		done
		[ -n "$best" ] && break
	done
	if [ -z "$best" ]; then
		[ -e "$dir/version" ] && return # an older one is there
		missing "$dir" "no package linux-image-VERSION-amd64, VERSION like ${patterns//\\/}, in the suites of the system's mirror: $(answers "$@")"
		return
	fi
	[ -e "$dir/version" ] && [ "$(cat "$dir/version")" = "$best" ] && return
	say "getting kernel $class: $best of $from"
	# Since 7.x the image is only a frame around these two.
	local packages=("linux-image-$best")
	if suite "$from" apt-cache show "linux-binary-$best" >/dev/null 2>&1; then
		packages=("linux-binary-$best" "linux-modules-$best")
	fi
	if ! download "$from" "$temp/deb" "${packages[@]}"; then
		missing "$dir" "${packages[*]} could not be downloaded from suite $from"
		return
	fi
	local p root=$temp/root new=$temp/kernel
	for p in "$temp"/deb/*.deb; do dpkg -x "$p" "$root"; done
	mkdir -p "$new/modules"
	# What NICs may need; test/vm finds the modules and their dependencies in it.
	local images=("$root/boot/vmlinuz-$best" "$root"/usr/lib/modules/*/vmlinuz "$root"/lib/modules/*/vmlinuz) tree
	for p in "${images[@]}"; do [ -e "$p" ] && mv "$p" "$new/vmlinuz"; done
	for tree in "$root"/usr/lib/modules/*/kernel "$root"/lib/modules/*/kernel; do
		for p in "$tree"/net/core "$tree"/net/xdp "$tree"/lib "$tree"/drivers/{virtio,i2c,dca,ptp,pps} \
			"$tree"/drivers/net/*.ko* "$tree"/drivers/net/ethernet/intel/igb; do
			[ ! -e "$p" ] || mv "$p" "$new/modules/"
		done
	done
	rm -rf "$root" "$temp/deb"
	if [ ! -e "$new/vmlinuz" ] || [ -z "$(find "$new/modules" -name 'virtio_net.ko*')" ]; then
		rm -rf "$new"
		missing "$dir" "${packages[*]} has no vmlinuz or no module virtio_net where they were looked for"
		return
	fi
	echo "$best" >"$new/version"
	place "$new" "$dir"
}

if [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || [ "$(id -u)" != 0 ]; then
	why="it takes root on Debian, amd64"
	[ -e "$cache/qemu/qemu" ] || missing "$cache/qemu" "$why"
	exit 0
fi
codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")

qemu
kernel 6.1 '6\.1\.[0-9]+' bookworm
kernel 6.12 '6\.12\.[0-9]+' trixie bookworm-backports
kernel 6.18 '6\.18\.[0-9]+ 6\.17\.[0-9]+ 6\.16\.[0-9]+' trixie-backports
newest='[0-9]+\.[0-9.]+'
[ -z "${AFXDP_VM_NEWEST-}" ] || newest=${AFXDP_VM_NEWEST//./\\.}
if [ -n "${AFXDP_VM_NEWEST-}" ] && [ -e "$cache/kernels/newest/version" ]; then
	case $(cat "$cache/kernels/newest/version") in
	"$AFXDP_VM_NEWEST"[+-]*) ;;
	*) rm -rf "$cache/kernels/newest" ;;
	esac
fi
kernel newest "$newest" trixie-backports sid

for k in "$cache"/kernels/*/version; do
	printf 'vm-setup: kernel %s: %s\n' "$(basename "$(dirname "$k")")" "$(cat "$k")"
done
