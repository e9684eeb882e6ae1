#!/usr/bin/env bash
# A real one-node Kubernetes for tests, in namespaces of its own. Root; setup.sh first.
#   cluster.sh up [--api-only]     ready in about 10 s; --api-only: etcd and the API server (CRDs, CEL, dry runs)
#   eval "$(cluster.sh env)"       KUBECONFIG and PATH for kubectl
#   cluster.sh status              each program, and the node; exit status 1 when one is down
#   cluster.sh load IMAGE.tar|-    a docker-archive or OCI archive; Pods use it with imagePullPolicy: Never
#   cluster.sh inside COMMAND...   runs a command in the node's namespaces
#   cluster.sh ctr ARGS...         containerd's own client
#   cluster.sh down                ends it and removes all it left; exit status 1 names what remains
# State: ${DRAINAGENT_RIG:-~/.cache/drainagent/cluster/state}, removed by down.
# Programs: ${DRAINAGENT_CLUSTER:-~/.cache/drainagent/cluster}/bin.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=${DRAINAGENT_CLUSTER:-${HOME:?set HOME or DRAINAGENT_CLUSTER}/.cache/drainagent/cluster}
bin=$programs/bin
rig=$(realpath -m "${DRAINAGENT_RIG:-$programs/state}")
pki=$rig/pki log=$rig/log run=$rig/run

# One /16: Pods, services, and the link between this machine and the node. A webhook that runs on this machine is
# reached at $host_ip.
net=10.89.0.0/16 pod_net=10.89.0.0/24 node_ip=10.89.0.1 service_net=10.89.1.0/24 service_ip=10.89.1.1
host_ip=10.89.2.1 uplink_ip=10.89.2.2 link_bits=30
link=drain0 bridge=cni0 cgroup=drainagent-cluster
etcd_url=http://127.0.0.1:2379
components=(etcd apiserver controller-manager scheduler containerd kubelet kube-proxy coredns)
# What the kubelet and the inotify limit change for the whole machine; `down` puts them back.
sysctls=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
  kernel.keys.root_maxbytes fs.inotify.max_user_instances)

die() { echo "cluster.sh: $*" >&2; exit 1; }

wait_for() { # seconds what command...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "no $what in time; the programs' logs are in $log"
    sleep 0.1
  done
}

# The node: one process that holds a mount, network and PID namespace. Everything runs in there, so the end of that
# process is the end of every other process, mount, interface and packet filter rule of the cluster.

node_pid() { # prints it; 1 when it is not running
  local pid
  pid=$(cat "$run/node.pid" 2>/dev/null) || return 1
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = catatonit ] || return 1
  grep -qzxF "DRAINAGENT_NODE=$rig" "/proc/$pid/environ" 2>/dev/null || return 1   # not a reused pid
  echo "$pid"
}

inside() {
  local pid
  pid=$(node_pid) || die "no cluster is up in $rig"
  DRAINAGENT_NODE=$rig nsenter -t "$pid" -m -n -p -- "$@"   # what runs in there is told by it
}

ctr() { CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 inside "$bin/ctr" -a /run/containerd/containerd.sock -n k8s.io "$@"; }
kubectl() { "$bin/kubectl" --kubeconfig "$pki/admin.kubeconfig" "$@"; }

owner() { # the state folder of the cluster that has the link
  { ip -o link show "$link" 2>/dev/null || true; } | sed -n 's/.*alias drainagent cluster in //p'
}

node_start() {
  local pid parent
  cgroups_remove
  rm -rf "$run"
  mkdir -p "$run" "$rig"/var/{upper,work}
  # Writes to /var (/var/lib/kubelet, /var/lib/cni, /var/log/containers) stay in the state folder; /run is as after a boot.
  # Private first: on a machine whose mounts are shared, making them shared anew would still send ours there.
  # shellcheck disable=SC2016   # expanded by the inner shell
  DRAINAGENT_NODE=$rig setsid unshare --mount --net --pid --fork --kill-child --propagation private --mount-proc sh -ec '
    mount --make-rshared /
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/lock /run/netns
    mount -t overlay overlay -o "lowerdir=/var,upperdir=$1/var/upper,workdir=$1/var/work" /var
    exec catatonit -P' node "$rig" >"$log/node.log" 2>&1 </dev/null 9<&- &
  parent=$!
  wait_for 10 "namespaces (see $log/node.log)" pgrep -P "$parent" -x catatonit
  pid=$(pgrep -P "$parent" -x catatonit)
  echo "$pid" >"$run/node.pid"

  ip link add "$link" type veth peer name uplink netns "$pid"
  ip link set "$link" alias "drainagent cluster in $rig" up
  ip addr add $host_ip/$link_bits dev "$link"
  inside sh -ec "
    sysctl -qw net.ipv4.ip_forward=1
    ip link set lo up
    ip link set uplink up
    ip addr add $uplink_ip/$link_bits dev uplink
    ip link add $bridge type bridge
    ip addr add $node_ip/${pod_net#*/} dev $bridge
    ip link set $bridge up"
  ip route add $net via $uplink_ip
}

sysctls_save() {
  if [ ! -e "$rig/sysctls" ]; then
    sysctl "${sysctls[@]}" | sed 's/ = /=/' >"$rig/sysctls.new"
    mv "$rig/sysctls.new" "$rig/sysctls"
  fi
  sysctl -qw fs.inotify.max_user_instances=8192
}

cgroup_roots() { awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts; }   # v1 has one for each controller

cgroups_make() { # the kubelet wants its root to exist
  local root value controllers
  cgroup_roots | while read -r root; do
    mkdir -p "$root/$cgroup"
    for value in cpuset.cpus cpuset.mems; do # v1 gives a new cpuset no CPU
      [ ! -e "$root/cgroup.clone_children" ] || [ ! -e "$root/$value" ] || cat "$root/$value" >"$root/$cgroup/$value"
    done
    controllers=$(cat "$root/cgroup.controllers" 2>/dev/null) || continue   # v1
    [ -z "$controllers" ] || echo "+${controllers// / +}" >"$root/cgroup.subtree_control"
  done
}

cgroups_left() { cgroup_roots | while read -r root; do [ ! -d "$root/$cgroup" ] || echo "$root/$cgroup"; done; }

cgroups_remove() { # a cgroup whose last process has just ended is busy for a moment
  local left i
  for ((i = 0; i < 50; i++)); do
    mapfile -t left < <(cgroups_left)
    [ ${#left[@]} -gt 0 ] || return 0
    find "${left[@]}" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    sleep 0.1
  done
}

alive() { # component
  local pid
  pid=$(cat "$run/$1.pid" 2>/dev/null) && inside kill -0 "$pid" 2>/dev/null
}

start() { # component command...: in the node, with its pid there in run/
  local name=$1
  shift
  ! alive "$name" || return 0
  # shellcheck disable=SC2016   # expanded by the inner shell
  inside setsid --fork sh -c 'echo $$ >"$0"; exec "$@"' "$run/$name.pid" "$@" >>"$log/$name.log" 2>&1 </dev/null 9<&-
}

certificates() {
  local ec=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1)
  [ ! -e "$pki/complete" ] || return 0
  rm -rf "$pki"
  mkdir -p "$pki"
  (
    cd "$pki"
    openssl req -x509 "${ec[@]}" -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=drainagent-cluster
    openssl ecparam -name prime256v1 -genkey -noout -out sa.key
    openssl ec -in sa.key -pubout -out sa.pub
    issue() { # name subject [subjectAltName]
      openssl req "${ec[@]}" -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
      openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
        -extfile <(echo 'extendedKeyUsage=serverAuth,clientAuth'; [ -z "${3:-}" ] || echo "subjectAltName=$3")
    }
    issue apiserver /CN=kube-apiserver \
      "IP:$node_ip,IP:$service_ip,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    issue admin /O=system:masters/CN=admin
    issue front-proxy /CN=front-proxy
    issue apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
    issue kubelet /O=system:nodes/CN=system:node:node1 "DNS:node1,IP:$node_ip"
    issue controller-manager /CN=system:kube-controller-manager
    issue scheduler /CN=system:kube-scheduler
    issue kube-proxy /CN=system:kube-proxy
    for user in admin kubelet controller-manager scheduler kube-proxy; do
      cat >"$user.kubeconfig" <<Y
apiVersion: v1
kind: Config
current-context: rig
contexts: [{name: rig, context: {cluster: rig, user: $user}}]
clusters: [{name: rig, cluster: {server: "https://$node_ip:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $user, user: {client-certificate-data: $(base64 -w0 "$user.crt"), client-key-data: $(base64 -w0 "$user.key")}}]
Y
    done
    touch complete
  ) 2>"$log/certificates.log"
}

configuration() {
  mkdir -p "$rig/cni"
  cat >"$rig/cni/10-rig.conflist" <<J
{"cniVersion": "0.4.0", "name": "rig", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "$pod_net", "rangeStart": "10.89.0.10"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
  cat >"$rig/containerd.toml" <<T
version = 3
root = "$rig/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$rig/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:rig"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$rig/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
T
  # ImageVolume is off by default in 1.34; the API server has it too.
  cat >"$rig/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
address: $node_ip
healthzBindAddress: 127.0.0.1
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: false
makeIPTablesUtilChains: true
localStorageCapacityIsolation: false
evictionHard: {memory.available: 100Mi}
enforceNodeAllocatable: []
syncFrequency: 5s
nodeStatusUpdateFrequency: 4s
clusterDNS: ["$node_ip"]
clusterDomain: cluster.local
featureGates: {ImageVolume: true}
resolvConf: ""
imageGCHighThresholdPercent: 100
podLogsDir: $rig/pods
volumePluginDir: $rig/volume-plugins
Y
  cat >"$rig/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 127.0.0.1
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $pki/kube-proxy.kubeconfig}
hostnameOverride: node1
mode: iptables
clusterCIDR: $pod_net
conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
Y
  # What the operator asks, for the test that holds its rights against it (tests/operator/e2e).
  cat >"$rig/audit.yaml" <<Y
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts:drainagent-system"]}
- {level: None}
Y
  cat >"$rig/Corefile" <<C
.:53 {
  bind $node_ip
  errors
  kubernetes cluster.local in-addr.arpa {
    endpoint https://$node_ip:6443
    kubeconfig $pki/admin.kubeconfig rig
    ttl 1
  }
}
C
}

start_control_plane() {
  start etcd "$(type -P "$bin/etcd" || type -P etcd)" --data-dir "$rig/etcd" --unsafe-no-fsync --logger zap \
    --listen-client-urls $etcd_url --advertise-client-urls $etcd_url
  start apiserver "$bin/kube-apiserver" --etcd-servers $etcd_url --bind-address $node_ip --advertise-address $node_ip \
    --secure-port 6443 --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
    --client-ca-file "$pki/ca.crt" --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$pki/sa.pub" --service-account-signing-key-file "$pki/sa.key" \
    --kubelet-certificate-authority "$pki/ca.crt" --kubelet-client-certificate "$pki/apiserver-kubelet.crt" \
    --kubelet-client-key "$pki/apiserver-kubelet.key" --kubelet-preferred-address-types InternalIP \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --service-cluster-ip-range $service_net --feature-gates ImageVolume=true --endpoint-reconciler-type lease \
    --requestheader-client-ca-file "$pki/ca.crt" --requestheader-allowed-names front-proxy \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- --proxy-client-cert-file "$pki/front-proxy.crt" \
    --proxy-client-key-file "$pki/front-proxy.key" --enable-aggregator-routing \
    --audit-policy-file "$rig/audit.yaml" --audit-log-path "$log/audit.log"
  wait_for 60 "API server" kubectl get --raw /readyz
}

node_ready() { # since: after a crash etcd still has the last word of the former kubelet
  local ready
  ready=$(kubectl get node node1 -o 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}')
  [[ $ready = True* && ! ${ready#True } < $1 ]]
}

start_node() {
  local name since=
  start containerd env PATH="$bin:$PATH" "$bin/containerd" --config "$rig/containerd.toml"
  for name in controller-manager scheduler; do
    set --
    [ $name = scheduler ] || set -- --service-account-private-key-file "$pki/sa.key" --root-ca-file "$pki/ca.crt" \
      --use-service-account-credentials --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" \
      --flex-volume-plugin-dir "$rig/volume-plugins"
    start $name "$bin/kube-$name" --kubeconfig "$pki/$name.kubeconfig" --bind-address 127.0.0.1 --leader-elect=false \
      --authentication-kubeconfig "$pki/$name.kubeconfig" --authorization-kubeconfig "$pki/$name.kubeconfig" "$@"
  done
  start kube-proxy "$bin/kube-proxy" --config "$rig/kube-proxy.yaml"
  start coredns "$bin/coredns" -conf "$rig/Corefile"
  wait_for 30 containerd ctr version
  cgroups_make
  alive kubelet || since=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  start kubelet "$bin/kubelet" --config "$rig/kubelet.yaml" --kubeconfig "$pki/kubelet.kubeconfig" \
    --root-dir "$rig/kubelet" --cert-dir "$pki" --hostname-override node1 --node-ip $node_ip
  images
  wait_for 60 "node that is Ready" node_ready "$since"
  wait_for 30 "default service account" kubectl get serviceaccount default
}

images() { # the pause program, and a small image for tests
  local have
  have=$(ctr images ls -q)
  grep -qx localhost/pause:rig <<<"$have" ||
    "$here/image.py" localhost/pause:rig /pause=/usr/bin/catatonit --entrypoint '/pause -P' | ctr images import - >/dev/null
  grep -qx localhost/busybox:rig <<<"$have" ||
    "$here/image.py" localhost/busybox:rig --busybox "$(command -v busybox)" | ctr images import - >/dev/null
}

check_tools() { # [--api-only]
  local missing=() tool wanted=(kube-apiserver kubectl)
  [ "$(id -u)" = 0 ] || die "needs root"
  [ "${1:-}" = --api-only ] || wanted+=(kube-controller-manager kube-scheduler kube-proxy kubelet containerd ctr coredns)
  for tool in "${wanted[@]}"; do [ -x "$bin/$tool" ] || missing+=("$bin/$tool"); done
  for tool in runc iptables catatonit openssl busybox ip nsenter unshare setsid flock pgrep python3; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ -x "$bin/etcd" ] || command -v etcd >/dev/null || missing+=(etcd)
  [ -x /usr/lib/cni/bridge ] || missing+=(/usr/lib/cni/bridge)
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}; run $here/setup.sh"
}

up() {
  local other began=$SECONDS
  [ $# = 0 ] || [ "$*" = --api-only ] || { usage; exit 2; }
  check_tools "$@"
  case $rig/ in /run/* | /var/*) die "DRAINAGENT_RIG: a folder outside /run and /var (the node has its own of these)" ;; esac
  exec 9<"$bin"
  flock 9   # another call may be at work
  other=$(owner)
  if [ -n "$other" ] && [ "$other" != "$rig" ]; then
    die "a cluster runs on this machine already, with its state in $other; DRAINAGENT_RIG=$other $0 down ends it"
  fi
  if [ -e "$rig" ] && [ ! -e "$rig/.cluster" ] && [ -n "$(ls -A "$rig")" ]; then
    die "$rig is not empty and no cluster's; DRAINAGENT_RIG names another folder"
  fi
  if ! node_pid >/dev/null || [ -z "$(ip -4 route show exact $net)" ]; then # or an earlier call was cut short
    node_end
    [ -z "$(ip -4 route show root $net)" ] || die "this machine has routes in $net: $(ip -4 route show root $net)"
    mkdir -p "$rig"
    chmod 700 "$rig"
    touch "$rig/.cluster"
    mkdir -p "$log"
    node_start
  fi
  sysctls_save
  configuration
  certificates
  start_control_plane
  [ "${1:-}" = --api-only ] || start_node
  echo "ready in $((SECONDS - began)) s; in a shell: eval \"\$($here/cluster.sh env)\"; kubectl get pods -A"
}

node_end() {
  local pid i
  ! pid=$(node_pid) || kill -9 "$pid"
  for ((i = 0; i < 100; i++)); do [ -n "$(processes_left)" ] || break; sleep 0.1; done
  [ "$(owner)" != "$rig" ] || ip link del "$link" 2>/dev/null || true   # the kernel ends its other half in its own time
}

down() {
  [ "$(id -u)" = 0 ] || die "needs root"
  [ ! -d "$bin" ] || { exec 9<"$bin"; flock 9; }
  node_end
  [ -n "$(owner)" ] || cgroups_remove
  [ ! -e "$rig/sysctls" ] || sysctl -qp "$rig/sysctls"
  remains >&2 || die "the above is left; $rig is kept"
  [ ! -e "$rig/.cluster" ] || rm -rf "$rig"
  echo "no cluster is left in $rig"
}

processes_left() { # containers have another environment: their cgroups tell of them
  { grep -lzxF "DRAINAGENT_NODE=$rig" /proc/[0-9]*/environ 2>/dev/null || true; } | tr -cd '0-9\n'
}

remains() { # prints what down could not end
  local left pid
  left=$(
    for pid in $(processes_left); do echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"; done
    awk -v rig="$rig/" 'index($5 "/", rig) == 1 { print "mount " $5 }' /proc/self/mountinfo
    [ "$(owner)" != "$rig" ] || echo "interface $link"
    [ -n "$(owner)" ] || { ip -4 route show root $net | sed 's/^/route /'; cgroups_left | sed 's/^/cgroup /'; }
    [ ! -e "$rig/sysctls" ] || sysctl "${sysctls[@]}" | sed 's/ = /=/' | diff - "$rig/sysctls" | sed -n 's/^</sysctl/p'
  ) || true
  [ -z "$left" ] || { echo "$left"; return 1; }
}

status() {
  local name down=0
  node_pid >/dev/null || die "no cluster is up in $rig"
  for name in "${components[@]}"; do
    [ -e "$run/$name.pid" ] || continue   # not started: --api-only
    if alive "$name"; then echo "$name up"; else echo "$name DOWN" && down=1; fi
  done
  kubectl get nodes --no-headers --request-timeout=5s || down=1
  return $down
}

usage() { sed -n '2,11s/^# //p' "$0" >&2; }

case ${1:-} in
up | down | status | inside | ctr) "$@" ;;
load) [ $# = 2 ] || { usage; exit 2; }; if [ "$2" = - ]; then ctr images import -; else ctr images import - <"$2"; fi ;;
env)
  node_pid >/dev/null || die "no cluster is up in $rig"
  # shellcheck disable=SC2016   # $PATH is the caller's
  printf 'export KUBECONFIG=%q DRAINAGENT_RIG=%q PATH=%q:$PATH\n' "$pki/admin.kubeconfig" "$rig" "$bin"
  ;;
*) usage; exit 2 ;;
esac
