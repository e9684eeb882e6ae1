#!/usr/bin/env bash
# setup.sh [PROGRAMS...]: what cluster.sh needs: Debian packages (as root), and the programs built from their Go modules in
# ${DRAINAGENT_CLUSTER:-~/.cache/drainagent/cluster}/bin. PROGRAMS: folders of go/, by default kubernetes containerd coredns.
# Once: 5 to 8 minutes on 2 idle cores and 4 GB of Go caches. Needs Go 1.25 or newer, and the Go module proxy.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${DRAINAGENT_CLUSTER:-${HOME:?set HOME or DRAINAGENT_CLUSTER}/.cache/drainagent/cluster}/bin
[ $# -gt 0 ] || set -- kubernetes containerd coredns
for name; do
  [ -d "$here/go/$name" ] || { echo "setup.sh: no $name in $here/go" >&2; exit 2; }
done

missing=()
need() { # package command...
  local package=$1 command
  shift
  for command; do command -v "$command" >/dev/null || { missing+=("$package"); return; }; done
}
need runc runc
need containernetworking-plugins /usr/lib/cni/bridge
need busybox-static busybox
need iptables iptables
need catatonit catatonit
need openssl openssl
need iproute2 ip
need procps pgrep sysctl
need util-linux nsenter unshare setsid flock
etcd=yes
[ -x "$bin/etcd" ] || command -v etcd >/dev/null || etcd=
if [ ${#missing[@]} -gt 0 ] || [ -z "$etcd" ]; then
  [ "$(id -u)" = 0 ] || { echo "setup.sh: as root, or install: ${missing[*]}$([ -n "$etcd" ] || echo " etcd-server")" >&2; exit 1; }
  apt-get update -q
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}" >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
if [ -z "$etcd" ]; then
  # The program alone: the package would start a service of its own.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get download -q -o APT::Sandbox::User=root etcd-server && dpkg -x etcd-server_*.deb .)
  mkdir -p "$bin"
  cp "$work/usr/bin/etcd" "$bin/etcd.new"
  mv "$bin/etcd.new" "$bin/etcd"
fi

"$here/build.sh" "$bin" "${@/#/$here/go/}"
