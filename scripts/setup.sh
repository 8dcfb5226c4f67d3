#!/usr/bin/env bash
# Installs what is missing for one purpose or more, saying what and why. Quiet and quick when everything is there.
#
#   scripts/setup.sh build    Go and git
#   scripts/setup.sh test     what the race detector needs
#   scripts/setup.sh vm       what running real microVMs needs
#
# It knows Debian's packages. Elsewhere it names what to install and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()

# say prints a line of progress; results stay on stdout.
say() { echo "setup: $*" >&2; }

die() {
  say "$@"
  exit 1
}

# have tells whether a program is there. Some live in folders that only root searches.
have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

# need PROGRAM PACKAGE WHY: the package is wanted when the program is missing.
need() {
  if ! have "$1"; then
    say "$2 is missing: $3"
    packages+=("$2")
  fi
}

as_root() {
  if ((EUID == 0)); then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif have sudo; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    die "not root and no sudo; run as root: $*"
  fi
}

# install_packages installs what need collected. Package lists may be missing or old on a fresh machine, so they are
# fetched only when the first try fails.
install_packages() {
  ((${#packages[@]})) || return 0
  have apt-get || die "this is no Debian: install by its own means: ${packages[*]}"
  say "apt-get install ${packages[*]}"
  local log
  log=$(mktemp)
  if ! as_root apt-get install -y --no-install-recommends "${packages[@]}" >"$log" 2>&1; then
    say "apt-get update (package lists are missing or old)"
    as_root apt-get update -q >"$log" 2>&1 &&
      as_root apt-get install -y --no-install-recommends "${packages[@]}" >"$log" 2>&1 ||
      {
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "could not install ${packages[*]}; see above"
      }
  fi
  rm -f "$log"
}

# check_go wants the Go of go.mod. A Go from 1.21 on fetches that one by itself when its GOTOOLCHAIN allows it.
check_go() {
  local wanted found
  wanted=$(awk '$1 == "go" { print $2 }' go.mod)
  found=$(go env GOVERSION 2>/dev/null) ||
    die "Go $wanted or newer is needed, and the one here ($(go version 2>/dev/null | cut -d' ' -f3)) cannot fetch it: install it from https://go.dev/dl"
  found=${found#go}
  [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1) == "$wanted" ]] ||
    die "Go $wanted or newer is needed, and here is $found: install it from https://go.dev/dl"
}

for purpose in "$@"; do
  case $purpose in
    build)
      need go golang-go "everything here is written in Go"
      need git git "the version in the binaries comes from it"
      ;;
    test)
      need gcc gcc "the race detector is linked by a C compiler"
      # The compiler alone has no headers to compile against.
      [[ -e /usr/include/stdlib.h ]] || need /usr/include/stdlib.h libc6-dev "the race detector needs the C library's headers"
      ;;
    vm)
      need qemu-system-x86_64 qemu-system-x86 "it runs the microVMs"
      need dpkg-deb dpkg "it unpacks the guest's kernel and busybox"
      need curl curl "the demo reads the daemon's metrics with it"
      ;;
    *) die "unknown purpose $purpose: build, test or vm" ;;
  esac
done

install_packages
for purpose in "$@"; do
  if [[ $purpose == build ]]; then check_go; fi
done
