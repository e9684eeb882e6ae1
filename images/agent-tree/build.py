"""Builds the agent's tree: one folder that any Python from 3.10 to 3.13 runs, sharing nothing with the image around it.

``python images/agent-tree/build.py [--output DIR] [--with-python [--arch ARCH]] [--require-all]``. Beside DIR it writes
DIR.tar. The same sources, wheels and interpreters give the same bytes, wherever and whenever it runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import debian_python

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
WHEELS = REPOSITORY / "build" / "wheels"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
#: Where the tree is in an engine's container. Bytecode and the carried interpreter name it.
LOCATION = "/opt/drainagent"
#: 2026-01-01. Every file's time, unless SOURCE_DATE_EPOCH is set.
DEFAULT_EPOCH = 1767225600
#: Where the agent's run begins, and what its own text does not show: codecs and the interpreter's own imports.
AGENT_ROOTS = (
    *(f"drainagent.{name}" for name in ("__main__", "hook", "cli", "check", "gauges", "completion")),
    *debian_python.START_ROOTS,
)

# Runs on each interpreter in turn. The environment holds the hash seed alone: sets in a pyc are in its order.
_COMPILE = """
import sys
del sys.path[0]
import importlib.util, os, py_compile
root, location = sys.argv[1:3]
for name in sys.stdin.read().split("\\0"):
    path = os.path.join(root, name)
    py_compile.compile(
        path, importlib.util.cache_from_source(path, optimization=""), f"{location}/{name}", doraise=True, optimize=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
_PROBE = "import sys; v = sys.version_info; print(sys.executable, sys.implementation.name, v.releaselevel, *v[:3])"


class BuildError(Exception):
    """The tree cannot be built; the message is one sentence for whoever called."""


@dataclass(frozen=True)
class Interpreter:
    """A CPython that makes bytecode."""

    path: str
    release: str


def epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or DEFAULT_EPOCH)


def agent_version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (REPOSITORY / "drainagent" / "__init__.py").read_text(), re.M)
    if found is None:
        raise BuildError("drainagent/__init__.py has no __version__")
    return found.group(1)


def interpreters() -> dict[str, Interpreter]:
    """The first CPython of each version on PATH or under pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {}
    for version in VERSIONS:
        for candidate in [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]:
            try:
                probe = subprocess.run([candidate, "-ISc", _PROBE], capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError):
                continue
            path, *build, major, minor, micro = probe.stdout.split()
            if build == ["cpython", "final"] and f"{major}.{minor}" == version:
                found[version] = Interpreter(path, f"{major}.{minor}.{micro}")
                break
    return found


def wheels(requirements: Path) -> list[Path]:
    """The wheels that ``requirements`` names by hash, kept in build/wheels."""
    wanted = re.findall(r"--hash=sha256:([0-9a-f]{64})", requirements.read_text())
    WHEELS.mkdir(parents=True, exist_ok=True)
    found = _by_hash(WHEELS.glob("*.whl"))
    if not set(wanted) <= set(found):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--require-hashes", "--only-binary=:all:", "-d", str(WHEELS), "-r", str(requirements)]
        if subprocess.run(command, check=False).returncode != 0:
            raise BuildError(f"pip could not fetch what {requirements} names")
        found = _by_hash(WHEELS.glob("*.whl"))
    kept = sorted(found[one] for one in wanted if one in found)
    if len(kept) != len(wanted) or not all(path.name.endswith("-none-any.whl") for path in kept):
        raise BuildError(f"{requirements} must name one pure-Python wheel a line")
    return kept


def _by_hash(paths: Iterable[Path]) -> dict[str, Path]:
    return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in paths}


def unpack_wheel(wheel: Path, packages: Path, licenses: Path) -> tuple[str, str]:
    """Packages into ``packages``, licences into a folder of ``licenses``; the name and version."""
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            top, _, rest = member.partition("/")
            if top.endswith(".dist-info"):
                if not rest.startswith("licenses/"):
                    continue
                target = licenses / name / rest.partition("/")[2]
            else:
                target = packages / member
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
    return name, version


def copy_modules(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def agent_files() -> list[str]:
    """The agent's modules, without what an engine's image has no use for."""
    package = REPOSITORY / "drainagent"
    names = [path.relative_to(package) for path in [*package.rglob("*.py"), package / "py.typed"]]
    return sorted(str(name) for name in names if name.parts[0] != "workstation")


def compile_all(interpreter: Interpreter, root: Path, names: Sequence[str], location: str) -> None:
    command = [interpreter.path, "-S", "-s", "-B", "-c", _COMPILE, str(root), location]
    text = "\0".join(sorted(names))
    subprocess.run(command, input=text, text=True, check=True, env={"PYTHONHASHSEED": "0"}, cwd="/")


def python_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))


def settle(root: Path, executables: Iterable[str]) -> None:
    """Modes and times that no umask and no clock decides."""
    runnable = {root / name for name in executables}
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path in runnable else 0o644)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)


def write_manifest(root: Path, executables: Iterable[str]) -> None:
    """One line a file: sha256, mode, path. Read by the copier and by `check`s of a copy; does not list itself."""
    runnable = set(executables)
    lines = []
    for name in sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()):
        digest = hashlib.sha256((root / name).read_bytes()).hexdigest()
        lines.append(f"{digest} {'0755' if name in runnable else '0644'} {name}\n")
    (root / "manifest").write_text("".join(lines))


def write_tar(root: Path, target: Path) -> None:
    new = target.with_name(target.name + ".new")
    with tarfile.open(new, "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            member = archive.gettarinfo(str(path), str(path.relative_to(root)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if path.is_file():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    new.replace(target)


def replace_folder(new: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    new.rename(target)


def build(output: Path, *, arch: str | None, require_all: bool) -> None:
    """``arch``: carry an interpreter for this Debian architecture; None: carry none."""
    found = interpreters()
    missing = [version for version in VERSIONS if version not in found]
    if missing:
        sentence = f"no Python {', '.join(missing)} is here (PATH and pyenv were looked at)"
        if require_all:
            raise BuildError(sentence)
        print(f"agent-tree: {sentence.upper()}; there the hook compiles its modules at each start", file=sys.stderr)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        root = Path(folder) / "tree"
        copy_modules(HERE / "tree", root, ["__main__.py", "bin/drainagent"])
        copy_modules(REPOSITORY / "drainagent", root / "drainagent", agent_files())
        copy_modules(REPOSITORY, root / "licenses" / "drainagent", ["LICENSE"])
        dependencies = dict(unpack_wheel(wheel, root, root / "licenses") for wheel in wheels(HERE / "requirements.txt"))
        ours = python_files(root)
        for interpreter in found.values():
            compile_all(interpreter, root, ours, LOCATION)
        executables = ["bin/drainagent"]
        python = None
        if arch is not None:
            python, more = _carry_python(root, arch, found)
            executables += more
        facts = {
            "agent": agent_version(),
            "dependencies": dependencies,
            "bytecode": {version: interpreter.release for version, interpreter in found.items()},
            "python": python,
        }
        (root / "build.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        write_manifest(root, executables)
        settle(root, executables)
        replace_folder(root, output)
    write_tar(output, output.with_name(output.name + ".tar"))
    files = [path for path in output.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{output}: {len(files)} files, {size / 2**20:.2f} MiB; bytecode for {', '.join(found) or 'no Python'}")


def _carry_python(root: Path, arch: str, found: dict[str, Interpreter]) -> tuple[dict[str, object], list[str]]:
    """``python/`` in the tree: what build.json says of it, and which of its files can be run."""
    version = debian_python.VERSION
    if version not in found:
        raise BuildError(f"the bytecode of the carried interpreter needs a Python {version} here")
    roots = debian_python.Roots(AGENT_ROOTS, [root])
    carried = debian_python.install(root / "python", f"{LOCATION}/python", arch, roots, root / "licenses")
    compile_all(found[version], root, [f"python/{name}" for name in python_files(root / "python")], LOCATION)
    script = root / "bin" / "drainagent"
    lines = script.read_text().splitlines(keepends=True)
    script.write_text("".join([f"#!{LOCATION}/python/bin/python3 -ISB\n", *lines[1:]]))
    return carried.facts, [f"python/{name}" for name in carried.executables]


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the agent's tree and a tar of it.")
    parser.add_argument("--output", type=Path, help="default: build/agent-tree, or build/agent-tree-python")
    parser.add_argument("--with-python", action="store_true", help="carry an interpreter, for images without Python")
    parser.add_argument("--arch", choices=debian_python.ARCHITECTURES, help="of the carried interpreter")
    parser.add_argument("--list-pythons", action="store_true", help="print the interpreters that are here, and end")
    parser.add_argument("--require-all", action="store_true", help="fail unless Python 3.10 to 3.13 are all here")
    options = parser.parse_args()
    if options.list_pythons:
        print("\n".join(f"{version} {found.path}" for version, found in interpreters().items()))
        return 0
    name = "agent-tree-python" if options.with_python else "agent-tree"
    output = Path(options.output or REPOSITORY / "build" / name).absolute()
    arch = (options.arch or debian_python.own_architecture()) if options.with_python else None
    try:
        build(output, arch=arch, require_all=options.require_all)
    except (BuildError, debian_python.DebianError) as error:
        print(f"agent-tree: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
