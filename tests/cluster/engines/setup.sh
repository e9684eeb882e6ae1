#!/usr/bin/env bash
# setup.sh [DIR]: stock vllm-router 0.1.17 and sglang-router 0.3.2 from PyPI, each in a venv of its own under DIR.
# DIR: ${DRAINAGENT_ROUTERS:-~/.cache/drainagent/routers}, kept between runs. About 280 MB and a minute, once.
set -euo pipefail
dir=${1:-${DRAINAGENT_ROUTERS:-${HOME:?set HOME, DRAINAGENT_ROUTERS or the argument}/.cache/drainagent/routers}}
py=${PYTHON:-python3.11}
"$py" -c 'import venv, ensurepip' 2>/dev/null || { echo "setup.sh needs $py with its venv module (PYTHON= picks one)" >&2; exit 1; }
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
exec 9>"$dir/.setup.lock"
flock 9   # another run may be installing
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1

install() { # package version
  local venv=$dir/venv-$1
  [ -e "$venv/.ready-$2" ] && "$venv/bin/python" -c '' 2>/dev/null && return
  echo "installing $1 $2 in $venv (once)" >&2
  rm -rf "$venv"
  "$py" -m venv "$venv"
  "$venv/bin/python" -m pip install -q "$1==$2"
  touch "$venv/.ready-$2"
}
install vllm-router 0.1.17
install sglang-router 0.3.2
echo "vllm-router 0.1.17 and sglang-router 0.3.2 are ready in $dir"
