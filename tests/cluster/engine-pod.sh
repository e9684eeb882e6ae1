#!/usr/bin/env bash
# Real engines in Pods of the cluster without an image of 6 GB: /usr, the interpreter and the engine's folder come from
# this machine, the image has only links to them. Ready in about 30 s; 3.3 GB of memory each, one of each fits 8 GB.
#   engine-pod.sh image                                 makes and loads localhost/hostbase:rig
#   engine-pod.sh yaml vllm|sglang NAME [GRACE [DIR]]   prints a Pod without a hook, for `drainagent inject`; GRACE: 30
# DIR is tests/engines/setup.sh's: ${DRAINAGENT_ENGINES:-~/.cache/drainagent/engines}. Environment: APP, the label app (NAME).
# SGLang's command has no --enable-metrics and vLLM's no --enable-server-load-tracking: inject adds them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

image() {
  local root name
  root=$(mktemp -d)
  # shellcheck disable=SC2064   # expanded now: local
  trap "rm -rf '$root'" EXIT
  mkdir -p "$root"/{usr,etc,root,tmp,var/tmp,proc,sys,dev}
  for name in bin sbin lib lib64; do ln -s usr/$name "$root/$name"; done
  chmod 1777 "$root/tmp" "$root/var/tmp"
  printf 'root:x:0:0:root:/root:/bin/sh\nengine:x:1000:1000::/tmp:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nengine:x:1000:\n' >"$root/etc/group"
  echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
  cp /etc/ld.so.cache "$root/etc/"
  "$here/image.py" localhost/hostbase:rig "/=$root" | "$here/cluster.sh" load -
}

yaml() {
  local engine=$1 name=$2 grace=${3:-30} dir python port command env
  dir=$(cd "${4:-${DRAINAGENT_ENGINES:-$HOME/.cache/drainagent/engines}}" && pwd)
  python=$(dirname "$(dirname "$(readlink -f "$dir/venv-$engine/bin/python")")")
  case $engine in
  vllm)
    port=8000
    command="[$dir/venv-vllm/bin/vllm, serve, $dir/mid, --host, 0.0.0.0, --port, '8000', --dtype, float32,
      --max-model-len, '4096', --enforce-eager, --served-model-name, tiny]"
    env="- {name: VLLM_CPU_KVCACHE_SPACE, value: '1'}
    - {name: VLLM_CPU_OMP_THREADS_BIND, value: nobind}
    - {name: VLLM_HOST_IP, value: 127.0.0.1}
    - {name: VLLM_NO_USAGE_STATS, value: '1'}"
    ;;
  sglang)
    port=30000
    command="[$dir/venv-sglang/bin/python, -m, sglang.launch_server, --model-path, $dir/mid, --host, 0.0.0.0,
      --port, '30000', --device, cpu, --attention-backend, torch_native, --dtype, float32, --context-length, '4096',
      --max-total-tokens, '60000', --served-model-name, tiny]"
    env="- {name: SGLANG_USE_CPU_ENGINE, value: '1'}"
    ;;
  *) usage ;;
  esac
  cat <<Y
apiVersion: v1
kind: Pod
metadata:
  name: $name
  labels: {app: ${APP:-$name}}
  annotations: {prometheus.io/scrape: 'true', prometheus.io/port: '$port', prometheus.io/path: /metrics}
spec:
  terminationGracePeriodSeconds: $grace
  enableServiceLinks: false   # a Service named vllm would set VLLM_PORT
  containers:
  - name: main
    image: localhost/hostbase:rig
    imagePullPolicy: Never
    command: $command
    env:
    - {name: HOME, value: /tmp}
    - {name: HF_HUB_OFFLINE, value: '1'}
    - {name: TRANSFORMERS_OFFLINE, value: '1'}
    - {name: OMP_NUM_THREADS, value: '1'}
    $env
    ports: [{name: http, containerPort: $port}]
    readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 10}
    resources: {limits: {memory: 6Gi}, requests: {memory: 1Gi, cpu: 100m}}
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: python, mountPath: $python, readOnly: true}
    - {name: engines, mountPath: $dir, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    - {name: shm, mountPath: /dev/shm}
  volumes:
  - {name: usr, hostPath: {path: /usr, type: Directory}}
  - {name: python, hostPath: {path: $python, type: Directory}}
  - {name: engines, hostPath: {path: $dir, type: Directory}}
  - {name: tmp, emptyDir: {}}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
Y
}

usage() { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }

case ${1:-} in
image) image ;;
yaml) [ $# -ge 3 ] || usage; shift; yaml "$@" ;;
*) usage ;;
esac
