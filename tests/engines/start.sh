#!/usr/bin/env bash
# start.sh vllm|sglang DIR TAG PORT [engine flags]: start the engine on loopback, wait until it answers, pin it; prints its pid.
# DIR is what setup.sh filled. The pid is the engine's process group too: `kill PID` ends it, `kill -KILL -- -PID` all of it.
# Environment: MODEL=tiny|mid (mid), SCHEME=http|https for the wait, WAIT_S seconds (300), RUN_DIR for TAG.log and TAG.pid (DIR),
# KV_GIB (vLLM, 1), PIN_OTHERS and PIN_WORKERS (CPUs 0 and 1: the workers spin, and would stall what shares a CPU with them).
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
for tool in curl ps taskset setsid nohup; do command -v "$tool" >/dev/null || { echo "start.sh needs: $tool" >&2; exit 1; }; done
engine=$1 dir=$(cd "$2" && pwd) tag=$3 port=$4; shift 4
run=${RUN_DIR:-$dir} venv=$dir/venv-$engine model=$dir/${MODEL:-mid}
log=$run/$tag.log
[ -e "$venv/.ready" ] || { echo "$engine is not installed in $dir: run setup.sh $engine $dir" >&2; exit 1; }
unset PYTHONPATH PYTHONHOME
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1 PATH=$venv/bin:$PATH

pid=
give_up() { [ -z "$pid" ] || kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null || true; exit 1; }
trap give_up INT TERM HUP
case $engine in
vllm)
  export VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=${KV_GIB:-1} VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_HOST_IP=127.0.0.1
  setsid nohup vllm serve "$model" --host 127.0.0.1 --port "$port" --dtype float32 --max-model-len 4096 --enforce-eager \
    --served-model-name tiny "$@" >"$log" 2>&1 </dev/null & pid=$! ready=/health;;
sglang)
  export SGLANG_USE_CPU_ENGINE=1
  setsid nohup python -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$port" --device cpu \
    --attention-backend torch_native --dtype float32 --context-length 4096 --max-total-tokens 60000 "$@" \
    >"$log" 2>&1 </dev/null & pid=$! ready=/model_info;;
*) echo "engine is vllm or sglang" >&2; exit 2;;
esac
echo "$pid" >"$run/$tag.pid"

up=
for ((i = 0; i < ${WAIT_S:-300} * 2; i++)); do
  curl -sfk --noproxy '*' -m 5 -o /dev/null "${SCHEME:-http}://127.0.0.1:$port$ready" && { up=1; break; }
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.5
done
[ -n "$up" ] || { echo "$engine ($tag) did not come up; the end of $log:" >&2; tail -30 "$log" >&2; give_up; }

descendants() { local c; for c in $(ps -o pid= --ppid "$1"); do echo "$c"; descendants "$c"; done; }
others=${PIN_OTHERS:-0} workers=${PIN_WORKERS:-1}
[ "$(nproc --all 2>/dev/null || echo 1)" -gt 1 ] || workers=0
taskset -apc "$others" "$pid" >/dev/null
for c in $(descendants "$pid"); do
  case $(tr '\0' ' ' 2>/dev/null <"/proc/$c/cmdline" | cut -c1-60) in *EngineCore* | *Worker* | *scheduler*) cpu=$workers;; *) cpu=$others;; esac
  taskset -apc "$cpu" "$c" >/dev/null 2>&1 || true
done
echo "$pid"
