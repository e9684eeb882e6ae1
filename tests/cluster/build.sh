#!/usr/bin/env bash
# build.sh BIN FOLDER...: builds the programs of Go modules into BIN. Each FOLDER is a module: its `tool` lines name them,
# or its own main.go is one. A single program gets the folder's name. A module built before is skipped, by its files' hash.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1"
bin=$(cd "$1" && pwd)
shift

command -v go >/dev/null || { echo "build.sh: Go 1.25 or newer is needed in PATH (go is not there)" >&2; exit 1; }

exec 9>"$bin/.lock"
flock 9   # another build may be filling the same folder
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version() { # of a required module, by the go.mod here
  awk -v module="$1" '$1 == module && $2 ~ /^v/ { print $2; exit } $2 == module && $3 ~ /^v/ { print $3; exit }' go.mod
}

link_flags() { # a program built as a tool does not know its own release
  local v
  case $1 in
  kubernetes)
    v=$(version k8s.io/kubernetes)
    IFS=. read -r major minor _ <<<"${v#v}"
    printf -- '-X k8s.io/component-base/version.git%s ' "Version=$v" "Major=$major" "Minor=$minor"
    ;;
  containerd) echo "-X github.com/containerd/containerd/v2/version.Version=$(version github.com/containerd/containerd/v2)" ;;
  helm3) echo "-X helm.sh/helm/v3/internal/version.version=$(version helm.sh/helm/v3)" ;;
  helm4) echo "-X helm.sh/helm/v4/internal/version.version=$(version helm.sh/helm/v4)" ;;
  esac
}

for folder; do
  folder=$(cd "$folder" && pwd) name=$(basename "$folder")
  mark=$bin/.$name-$(cat "$folder"/* | sha256sum | cut -c1-12)
  [ -e "$mark" ] && continue
  echo "building $name in $bin (once)" >&2
  began=$SECONDS
  cp -r "$folder" "$work/$name"   # the checkout may be read-only
  cd "$work/$name"
  mkdir out
  what=.
  ! grep -q '^tool' go.mod || what=tool
  CGO_ENABLED=0 go build -tags no_btrfs,no_devmapper,no_zfs -ldflags "-s -w $(link_flags "$name")" -o out/ $what
  programs=(out/*)
  [ ${#programs[@]} -gt 1 ] || [ "${programs[0]}" = "out/$name" ] || mv "${programs[0]}" "out/$name"
  mv -f out/* "$bin/"
  rm -f "$bin/.$name"-*
  touch "$mark"
  echo "built $name in $((SECONDS - began)) s" >&2
done
