#!/usr/bin/env bash
# Makes the generated Go code under api/, or proves that it is current.
#
#   scripts/generated.sh make    generate, and write down in api/generated.sum from what and what
#   scripts/generated.sh check   generate into a temporary folder and compare both ways, so that neither a stale file
#                                nor one whose .proto is gone passes
#   scripts/generated.sh quick   compare with api/generated.sum only: in a moment, and without building buf
#
# Checking looks at nothing but these files, so it works in a tree with other changes.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

buf() { go tool -modfile=tools/buf/go.mod buf "$@"; }

# generated lists the generated files under a folder.
generated() { (cd "$1" && find api -name '*.pb.go'); }

# sums covers all that decides about the code, and the code.
sums() {
  { echo buf.gen.yaml tools/buf/go.mod tools/protoc/go.mod | tr ' ' '\n' && find api -name '*.proto' && generated .; } |
    sort | xargs sha256sum
}

check_sums() {
  diff api/generated.sum <(sums) >&2
}

# generate_aside generates into a temporary folder, $tmp, so that a failure leaves the tree as it was.
generate_aside() {
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  buf generate -o "$tmp"
}

check_files() {
  generate_aside || return
  local file stale=0
  while read -r file; do
    if ! cmp -s "$file" "$tmp/$file"; then
      echo "$file is not what the .proto files give" >&2
      stale=1
    fi
  done < <({ generated . && generated "$tmp"; } | sort -u)
  return $stale
}

outdated() {
  echo "the generated code is not current; run: make generate" >&2
  exit 1
}

case ${1:-} in
  make)
    generate_aside
    generated . | while read -r file; do [[ -e $tmp/$file ]] || rm "$file"; done
    cp -r "$tmp/api/." api/
    sums >api/generated.sum
    ;;
  check) check_files && check_sums || outdated ;;
  quick) check_sums || outdated ;;
  *)
    echo "usage: $0 make|check|quick" >&2
    exit 2
    ;;
esac
