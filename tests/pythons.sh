#!/usr/bin/env bash
# Runs the tests on every Python from 3.10 to 3.13 found on PATH or under pyenv, but the one of .venv.
# Without the suites that start hooks by the hundred to watch the clock, the explorer of the retirement protocol, and the
# passes that fail at every write (--all: with them); whole hooks, removals and passes run in the rest too.
set -euo pipefail
cd "$(dirname "$0")/.."
own=$([ -x .venv/bin/python ] && .venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' || true)
ran=0
slow=(--ignore=tests/test_hook_process.py --ignore=tests/test_hook_isolation.py --ignore=tests/test_hook_leader.py
  --ignore=tests/operator/retirement/test_explorer.py --ignore=tests/operator/retirement/test_mutations.py
  --ignore=tests/operator/runtime/test_controller.py --ignore=tests/operator/runtime/test_runtime_retirement.py)
if [ "${1:-}" = --all ]; then slow=() && shift; fi
for version in 3.10 3.11 3.12 3.13; do
  [ "$version" = "$own" ] && continue
  for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
    "$python" -c 'import venv' 2>/dev/null || continue
    echo "== Python $version ($python)"
    [ -e ".venv-$version/.ready" ] && [ ".venv-$version/.ready" -nt pyproject.toml ] || {
      rm -rf ".venv-$version"
      "$python" -m venv ".venv-$version"
      ".venv-$version/bin/pip" install -q -e '.[test]'
      touch ".venv-$version/.ready"
    }
    ".venv-$version/bin/python" -m pytest -n auto --dist loadfile "${slow[@]}" "$@"
    ran=$((ran + 1))
    break
  done
done
[ "$ran" -gt 0 ] || echo "no other Python from 3.10 to 3.13 is here; nothing was run" >&2
