"""A CPython out of Debian's packages that needs nothing of the image it is put in, not even a libc.

Its loader and libraries lie beside it and are found by a fixed path, so that LD_LIBRARY_PATH and the image's own
libraries do not reach it. Debian's versions move: the same bytes come out only while its mirror holds the same ones.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Debian 12's.
VERSION = "3.11"
PACKAGES = (
    f"python{VERSION}-minimal",
    f"libpython{VERSION}-minimal",
    f"libpython{VERSION}-stdlib",
    "libc6",
    "libssl3",
    "zlib1g",
    "libexpat1",
)
ARCHITECTURES = ("amd64", "arm64")
CACHE = Path(__file__).resolve().parents[2] / "build" / "debian"
#: The largest page size of the architecture's kernels: segments are aligned to it.
_PAGE_BYTES = {"amd64": 4096, "arm64": 65536}

#: What every run needs though no program's text imports it.
START_ROOTS = ("runpy", "site", "traceback", *(f"encodings.{name}" for name in ("utf_8", "ascii", "latin_1", "idna")))
#: Named by an import somewhere in the rest, and of no use to a program that serves or reads HTTP on Linux. Each is
#: imported inside a function or may be missing; the tests import all the rest.
LEFT_OUT = {
    "_uuid",
    "bz2",
    "concurrent.futures.process",
    "ctypes",
    "doctest",
    "encodings.mbcs",
    "importlib.metadata",
    "importlib.readers",
    "lzma",
    "multiprocessing",
    "ntpath",
    "plistlib",
    "pydoc",
    "readline",
    "rlcompleter",
    "sitecustomize",
    "statistics",
    "tarfile",
    "tracemalloc",
    "usercustomize",
    "webbrowser",
    "zipfile",
}


class DebianError(Exception):
    """The interpreter cannot be put together; the message is one sentence for whoever called."""


@dataclass(frozen=True)
class Roots:
    """The modules that a program starts from, and the folders outside the standard library that it imports from."""

    modules: Sequence[str]
    folders: Sequence[Path]


@dataclass(frozen=True)
class Program:
    """A program of another package, put at ``target`` to run with the interpreter's loader and libraries."""

    package: str
    path: str
    target: Path


@dataclass(frozen=True)
class Carried:
    """``facts`` are for build.json; ``executables`` are relative to the interpreter's folder."""

    facts: dict[str, object]
    executables: list[str]


@dataclass(frozen=True)
class _Package:
    name: str
    version: str
    sha256: str
    path: Path


def own_architecture() -> str:
    return _output(["dpkg", "--print-architecture"]).strip()


def install(
    target: Path, location: str, arch: str, roots: Roots, licenses: Path, programs: Sequence[Program] = ()
) -> Carried:
    """``target/bin/python3`` and ``target/lib`` with what ``roots`` import; to be run as ``location/bin/python3``."""
    packages = _fetch(arch, [*PACKAGES, *(program.package for program in programs)])
    with tempfile.TemporaryDirectory(prefix="debian-python-") as folder:
        unpacked = Path(folder)
        for package in packages:
            _output(["dpkg-deb", "-x", str(package.path), folder])
            (licenses / package.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(
                unpacked / "usr" / "share" / "doc" / package.name / "copyright", licenses / package.name / "copyright"
            )
        python = target / "bin" / "python3"
        for source, to in [(f"usr/bin/python{VERSION}", python), *((one.path, one.target) for one in programs)]:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(unpacked / source, to)
        modules = _install_modules(unpacked / "usr" / "lib" / f"python{VERSION}", target / "lib", roots)
        started = [python, *(one.target for one in programs)]
        loader = _install_libraries(unpacked, target / "lib", f"{location}/lib", started, _PAGE_BYTES[arch])
    facts: dict[str, object] = {
        "architecture": arch,
        "modules": modules,
        "packages": {one.name: {"version": one.version, "sha256": one.sha256} for one in packages},
    }
    return Carried(facts, ["bin/python3", f"lib/{loader}"])


def _fetch(arch: str, wanted: Sequence[str]) -> list[_Package]:
    """The packages, kept in build/debian. apt checks them against the archive's signature."""
    folder = CACHE / arch
    folder.mkdir(parents=True, exist_ok=True)
    options = [] if arch == own_architecture() else _foreign(arch)
    download = ["apt-get", *options, "-qq", "-o", "APT::Sandbox::User=root", "download"]
    uris = _output([*download, "--print-uris", *wanted])
    found = re.findall(r"^'[^']+' ((\S+?)_(\S+)_\S+\.deb) \d+ SHA256:([0-9a-f]{64})$", uris, re.M)
    if sorted(name for _, name, _, _ in found) != sorted(wanted):
        raise DebianError(f"apt knows no {', '.join(wanted)} for {arch}: it takes Debian 12 and apt-get update")
    packages = []
    for file, name, version, digest in sorted(found):
        if _digest(folder / file) != digest:
            _output([*download, name], cwd=folder)
        if _digest(folder / file) != digest:
            raise DebianError(f"{file} is not the file that apt named")
        packages.append(_Package(name, version.replace("%3a", ":"), digest, folder / file))
    return packages


def _foreign(arch: str) -> list[str]:
    """apt on lists of its own, so that the machine's architectures stay as they are. Debian's sources alone."""
    state = CACHE / f"apt-{arch}"
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "empty.d").mkdir(exist_ok=True)
    (state / "status").touch()
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists():
        sources = Path("/etc/apt/sources.list")
    shutil.copyfile(sources, state / sources.name)
    settings = {
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "Dir::State": str(state),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(state),
        "Dir::Etc::sourcelist": str(state / sources.name),
        "Dir::Etc::sourceparts": str(state / "empty.d"),
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _output(["apt-get", *options, "-qq", "-o", "APT::Sandbox::User=root", "update"])
    return options


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def _install_modules(source: Path, lib: Path, roots: Roots) -> int:
    """The part of the standard library that the roots can reach by any import statement, but ``LEFT_OUT``."""
    found = sorted(path for path in reachable([source, *roots.folders], roots.modules) if path.is_relative_to(source))
    for path in found:
        target = lib / f"python{VERSION}" / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    # Without this folder Python says that it cannot find its platform's modules.
    (lib / f"python{VERSION}" / "lib-dynload").mkdir(exist_ok=True)
    return len(found)


def reachable(folders: Sequence[Path], modules: Sequence[str]) -> set[Path]:
    """The files of ``modules`` and of all that their import statements may mean, as far as they are in ``folders``."""
    seen: set[str] = set()
    found: set[Path] = set()
    left = list(modules)
    while left:
        parts = left.pop().split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            if module in LEFT_OUT:
                break
            if module in seen:
                continue
            seen.add(module)
            path = _module_file(folders, module)
            if path is None:
                break  # built in, of another system, elsewhere, or no module but a name in one
            found.add(path)
            if path.suffix == ".py":
                left += _imports(path, module)
    return found


def _module_file(folders: Sequence[Path], module: str) -> Path | None:
    for folder in folders:
        base = folder.joinpath(*module.split("."))
        extension = (folder / "lib-dynload").glob(f"{module}.*.so")
        for path in (base / "__init__.py", base.with_name(base.name + ".py"), *extension):
            if path.is_file():
                return path
    return None


def _imports(path: Path, module: str) -> Iterator[str]:
    """Every module that an import statement of this file may mean, at any depth."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _install_libraries(unpacked: Path, lib: Path, location: str, programs: Sequence[Path], page_bytes: int) -> str:
    """The libraries that the programs and the modules name, and the loader, whose name is returned."""
    patchelf = ["patchelf", "--page-size", str(page_bytes)]
    loader = Path(_output(["patchelf", "--print-interpreter", str(programs[0])]).strip()).name
    objects = [*programs, *sorted(lib.rglob("*.so"))]
    libraries: dict[str, Path] = {}
    left = list(objects)
    while left:
        needed = _output(["patchelf", "--print-needed", str(left.pop())]).split()
        for name in [loader, *needed]:
            if name not in libraries:
                libraries[name] = Path(shutil.copyfile(_library(unpacked, name), lib / name))
                left.append(libraries[name])
    for program in programs:
        _output([*patchelf, "--set-interpreter", f"{location}/{loader}", str(program)])
    for path in [*objects, *(path for name, path in libraries.items() if name != loader)]:
        # An rpath comes before LD_LIBRARY_PATH, a runpath after it. Not $ORIGIN: the loader reads that from /proc.
        _output([*patchelf, "--force-rpath", "--set-rpath", location, str(path)])
        # In a call of its own: beside another change this patchelf drops it.
        _output([*patchelf, "--no-default-lib", str(path)])
    return loader


def _library(unpacked: Path, name: str) -> Path:
    for path in sorted(unpacked.rglob(name)):
        # A link with an absolute target would lead to the building machine's own file.
        if path.resolve().is_relative_to(unpacked.resolve()):
            return path.resolve()
    raise DebianError(f"{name} is in none of the packages that are fetched")


def _output(command: Sequence[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=cwd)
    except FileNotFoundError as error:
        raise DebianError(f"{command[0]} is not here") from error
    except subprocess.CalledProcessError as error:
        raise DebianError(f"{command[0]} failed: {' '.join(command)}") from error
    return done.stdout
