#!/usr/bin/env bash
# Builds the images with buildah: no daemon, no registry, no container is run.
# images/build.sh [OPTIONS] carrier|carrier-python|standin|standin-agent|operator|all...
# images/build.sh [OPTIONS] [--tag NAME] engine BASE
# images/build.sh [--arch ARCH] copier FILE
#   --tag-prefix P   images are P/agent, P/standin and P/operator (drainagent)
#   --arch ARCH      amd64 or arm64 (this machine's); another one's tags end in -ARCH
#   --archive DIR    also DIR/*.tar, one docker-archive an image
#   --format F       of the archives: docker-archive or oci-archive
#   --root DIR       buildah's storage
#   --any-python     go on where a Python from 3.10 to 3.13 is missing: the tree then lacks its bytecode
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
given() { (cd "$caller" && realpath -m "$1"); } # a path as the caller means it
usage() { sed -n '3,11s/^# //p' images/build.sh >&2 && exit 2; }
umask 022 # the copier and the folders around the tree are read by other users

own_arch=$(dpkg --print-architecture)
prefix=drainagent arch=$own_arch archive='' format=docker-archive root='' tag='' base='' copier=''
pythons=(--require-all) targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --tag-prefix) prefix=$2 && shift 2 ;;
    --arch) arch=$2 && shift 2 ;;
    --archive) archive=$(given "$2") && shift 2 ;;
    --format) format=$2 && shift 2 ;;
    --root) root=$(given "$2") && shift 2 ;;
    --tag) tag=$2 && shift 2 ;;
    --any-python) pythons=() && shift ;;
    engine) targets+=(engine) && base=${2:?engine BASE} && shift 2 ;;
    copier) targets+=(copier) && copier=$(given "${2:?copier FILE}") && shift 2 ;;
    all) targets+=(carrier carrier-python standin standin-agent operator) && shift ;;
    carrier | carrier-python | standin | standin-agent | operator) targets+=("$1") && shift ;;
    *) usage ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || usage

python=${PYTHON:-python3}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' drainagent/__init__.py)
revision=$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
suffix='' && [ "$arch" = "$own_arch" ] || suffix=-$arch
stage=build/images/$arch
ours='Apache-2.0 AND BSD-3-Clause AND MIT'
debian='PSF-2.0 AND LGPL-2.1-or-later AND Zlib'

# A name without a registry is one of this machine's own images: no registries.conf is needed, and nothing is asked.
local_name() {
  case $1 in
    localhost/* | *.*/* | *:*/*) echo "$1" ;;
    *) echo "localhost/$1" ;;
  esac
}

buildah_() { buildah ${root:+--root "$root" --runroot "$root/run"} --storage-driver vfs "$@"; }

tree() { # FOLDER OPTIONS...: the agent's tree
  "$python" images/agent-tree/build.py --output "$1" "${pythons[@]}" "${@:2}"
  # The time that the tree's files carry is the images' too.
  epoch=$(stat -c %Y "$1/manifest")
}

image() { # NAME CONTAINERFILE LICENSES [BASE]: from the folder $stage/context
  local name
  name=$(local_name "$1")
  buildah_ bud -q --isolation chroot --no-cache --arch "$arch" --format oci --timestamp "$epoch" -f "$2" -t "$name" \
    --build-arg VERSION="$version" --build-arg REVISION="$revision" \
    --build-arg CREATED="$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)" --build-arg LICENSES="$3" \
    ${4:+--build-arg BASE="$4"} "$stage/context" >/dev/null
  echo "$1 $(buildah_ images --no-trunc --format '{{.ID}} {{.Size}}' "$name")"
  if [ -n "$archive" ]; then
    local file
    file=$archive/$(tr '/:' '--' <<<"$1").tar
    mkdir -p "$archive" && rm -f "$file"
    buildah_ push -q "$name" "$format:$file:$1"
  fi
}

context() { rm -rf "$stage/context" && mkdir -p "$stage/context"; }

copier() { # FILE: the carrier's program, static and without the path it was built in
  (cd images/carrier/copy && CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false \
    -ldflags '-s -w -buildid=' -o "$1" .)
}

carrier() { # TAG LICENSES OPTIONS...
  tree "$stage/tree" "${@:3}"
  context
  cp -a "$stage/tree" "$stage/context/tree"
  copier "$PWD/$stage/context/copy"
  image "$prefix/agent:$1" images/carrier/Containerfile "$2"
}

standin() {
  tree "$stage/tree"
  context
  "$python" images/standin/build_root.py --arch "$arch" --agent-tree "$stage/tree" --output "$stage/context/root"
  image "$prefix/standin:$version$suffix" images/standin/Containerfile "$ours AND $debian AND GPL-3.0-or-later"
}

operator() {
  context
  "$python" images/operator/build_root.py --arch "$arch" --output "$stage/context/root"
  epoch=$(stat -c %Y "$stage/context/root/licenses/build.json")
  image "$prefix/operator:$version$suffix" images/operator/Containerfile \
    "$ours AND $debian AND PSF-2.0 AND MPL-2.0 AND GPL-3.0-or-later WITH GCC-exception-3.1"
}

engine() { # NAME BASE
  tree "$stage/tree"
  context
  mkdir "$stage/context/bin"
  cp -a "$stage/tree" "$stage/context/drainagent"
  ln -s /opt/drainagent/bin/drainagent "$stage/context/bin/drainagent"
  image "$1" images/engine/Containerfile "$ours" "$(local_name "$2")"
}

for target in "${targets[@]}"; do
  case $target in
    carrier) carrier "$version$suffix" "$ours" ;;
    carrier-python) carrier "$version-python$suffix" "$ours AND $debian" --with-python --arch "$arch" ;;
    standin) standin ;;
    operator) operator ;;
    standin-agent) engine "$prefix/standin:$version-agent$suffix" "$prefix/standin:$version$suffix" ;;
    copier) copier "$copier" ;;
    engine) engine "${tag:-$prefix/engine:$version$suffix}" "$base" ;;
  esac
done
