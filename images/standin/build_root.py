"""Builds the root folder of the stand-in's image: a CPython out of Debian's packages, the stand-in, an engine's names.

``python images/standin/build_root.py [--output DIR] [--arch ARCH] [--agent-tree DIR]``. The agent is not in it. Its
tree is read for what it imports: an engine's image has a whole standard library, so that the hook finds its part of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "agent-tree"))

import build as agent_tree  # noqa: E402
import debian_python  # noqa: E402

REPOSITORY = HERE.parents[1]
STANDIN = "drainagent.workstation.standin"
PREFIX = "usr/local"


def build(output: Path, arch: str, tree: Path) -> None:
    found = agent_tree.interpreters()
    if debian_python.VERSION not in found:
        raise agent_tree.BuildError(f"the bytecode needs a Python {debian_python.VERSION} here")
    if not (tree / "manifest").exists():
        raise agent_tree.BuildError(f"{tree} is not the agent's tree (make agent-tree)")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        root = Path(folder) / "root"
        prefix = root / PREFIX
        packages = prefix / "lib" / f"python{debian_python.VERSION}" / "dist-packages"
        modules = debian_python.reachable([REPOSITORY], [STANDIN])
        agent_tree.copy_modules(REPOSITORY, packages, sorted(str(path.relative_to(REPOSITORY)) for path in modules))
        agent_tree.copy_modules(HERE / "modules", packages, agent_tree.python_files(HERE / "modules"))
        agent_tree.copy_modules(HERE, prefix, ["bin/vllm", "bin/sglang"])
        licenses = root / "licenses"
        agent_tree.copy_modules(REPOSITORY, licenses / "drainagent", ["LICENSE"])
        wheels = agent_tree.wheels(HERE / "requirements.txt")
        dependencies = dict(agent_tree.unpack_wheel(wheel, packages, licenses) for wheel in wheels)
        roots = debian_python.Roots(["standin_as", STANDIN, *agent_tree.AGENT_ROOTS], [packages, tree])
        # For scripts that begin with `#!/usr/bin/env python3`, as the agent's own for people does.
        env = debian_python.Program("coreutils", "usr/bin/env", root / "usr" / "bin" / "env")
        carried = debian_python.install(prefix, f"/{PREFIX}", arch, roots, licenses, [env])
        agent_tree.compile_all(found[debian_python.VERSION], root, agent_tree.python_files(root), "")
        (prefix / "bin" / "python").symlink_to("python3")
        facts = {"standin": agent_tree.agent_version(), "dependencies": dependencies, "python": carried.facts}
        (root / "licenses" / "build.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        executables = ["bin/vllm", "bin/sglang", *carried.executables]
        agent_tree.settle(root, ["usr/bin/env", *(f"{PREFIX}/{name}" for name in executables)])
        if output.exists():
            shutil.rmtree(output)
        root.rename(output)
    files = [path for path in output.rglob("*") if path.is_file() and not path.is_symlink()]
    print(f"{output}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.2f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the root folder of the stand-in's image.")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "standin")
    parser.add_argument("--arch", choices=debian_python.ARCHITECTURES, default=None)
    parser.add_argument("--agent-tree", type=Path, default=REPOSITORY / "build" / "agent-tree")
    options = parser.parse_args()
    try:
        build(options.output.absolute(), options.arch or debian_python.own_architecture(), options.agent_tree)
    except (agent_tree.BuildError, debian_python.DebianError) as error:
        print(f"standin: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
