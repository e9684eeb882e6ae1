"""Builds the root folder of the operator's image: Debian's CPython with its whole library, the wheels, the package.

``python images/operator/build_root.py [--output DIR] [--arch ARCH]``. Unlike the agent's interpreter it is alone in its
image, so that everything stays where Debian has it. The same wheels, sources and Debian packages give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "agent-tree"))

import build as agent_tree  # noqa: E402
import debian_python  # noqa: E402

REPOSITORY = HERE.parents[1]
VERSION = debian_python.VERSION
#: What Debian's Python has its own packages from; it looks in `dist-packages` by itself.
PACKAGES = f"usr/local/lib/python{VERSION}/dist-packages"
LIBRARY = f"usr/lib/python{VERSION}"

#: Beside the agent's interpreter: libffi for ctypes and cffi, what the standard library compresses by, C++ for
#: google-re2 (gcc-12-base has its licence), and the certificates of the world outside.
DEBIAN = (
    *debian_python.PACKAGES,
    "ca-certificates",
    "gcc-12-base",
    "libbz2-1.0",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libstdc++6",
    "libuuid1",
)
#: Of the wheels: those with a glibc that is not newer than Debian 12's.
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBCS = ("manylinux2014", "manylinux_2_28", "manylinux_2_34", "manylinux_2_36")
PIP = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile")

#: Parts of the standard library that no server runs: what draws, what installs, what tests, what asks a person.
LEFT_OUT = (
    "EXTERNALLY-MANAGED",
    "__phello__",
    "config-*",
    "curses",
    "ensurepip",
    "idlelib",
    "lib2to3",
    *(f"lib-dynload/{name}.*" for name in ("_crypt", "_dbm", "_gdbm", "_sqlite3", "audioop", "nis", "ossaudiodev")),
    *(f"lib-dynload/{name}*" for name in ("_curses", "_test", "_xx", "readline", "xxlimited")),
    "pydoc_data",
    "sitecustomize.py",
    "sqlite3",
    "test",
    "tkinter",
    "turtle.py",
    "turtledemo",
    "venv",
)
#: Parts of libc that nothing here loads.
_LIBC_LEFT_OUT = (
    "libBrokenLocale",
    "libc_malloc_debug",
    "libmemusage",
    "libmvec",
    "libnsl.",
    "libnss_compat",
    "libnss_hesiod",
    "libpcprofile",
    "libthread_db",
)
#: Of wheels: what is there for a compiler, a type checker or a test run, and what pip notes for itself.
_WHEEL_LEFT_OUT = re.compile(
    r"(^|/)(tests?|e2e_test|__pycache__)/|\.(pyi|pyx|pxd|pxi|c|h|hash|tmpl)$|(^|/)(RECORD|INSTALLER|REQUESTED|direct_url\.json)$"
)
_FILES = {
    "etc/passwd": "root:x:0:0::/:/sbin/nologin\noperator:x:65532:65532::/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\noperator:x:65532:\n",
    # Without it glibc asks the DNS before /etc/hosts.
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def platform(arch: str) -> list[str]:
    """pip's options for wheels of the image's Python and not of this one."""
    words = ["--only-binary=:all:", "--implementation=cp", f"--python-version={VERSION}"]
    return [*words, *(f"--platform={glibc}_{PLATFORMS[arch]}" for glibc in _GLIBCS)]


def build(output: Path, arch: str) -> None:
    found = agent_tree.interpreters()
    if VERSION not in found:
        raise agent_tree.BuildError(f"the bytecode needs a Python {VERSION} here")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        root = Path(folder) / "root"
        licenses, packages = root / "licenses", root / PACKAGES
        debian = _install_debian(root, licenses, arch)
        wheels = _install_wheels(packages, licenses, arch)
        for package in ("drainagent", "operator_glue"):
            agent_tree.copy_modules(REPOSITORY, packages, _files_of(package))
        agent_tree.copy_modules(REPOSITORY, licenses / "drainagent", ["LICENSE"])
        agent_tree.compile_all(found[VERSION], root, agent_tree.python_files(root), "")
        facts = {"operator": agent_tree.agent_version(), "architecture": arch, "debian": debian, "wheels": wheels}
        (licenses / "build.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        loaders = [str(path.relative_to(root)) for path in (root / "lib").rglob("ld-linux-*.so.*")]
        agent_tree.settle(root, [f"usr/bin/python{VERSION}", *loaders])
        (root / "tmp").chmod(0o1777)
        agent_tree.replace_folder(root, output)
    files = [path for path in output.rglob("*") if path.is_file() and not path.is_symlink()]
    print(f"{output}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB")


def _files_of(package: str) -> list[str]:
    found = [path for path in (REPOSITORY / package).rglob("*") if path.suffix in (".py", ".json", ".typed")]
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)


def _install_debian(root: Path, licenses: Path, arch: str) -> dict[str, dict[str, str]]:
    """What Debian's packages have, at their places; their versions, for build.json."""
    packages = debian_python._fetch(arch, DEBIAN)
    with tempfile.TemporaryDirectory(prefix="operator-debian-") as folder:
        unpacked = Path(folder)
        for package in packages:
            subprocess.run(["dpkg-deb", "-x", str(package.path), folder], check=True)
        for package in packages:
            (licenses / package.name).mkdir(parents=True)
            source = unpacked / "usr/share/doc" / package.name  # or a link to its source package's
            shutil.copyfile(source / "copyright", licenses / package.name / "copyright")
        shutil.copytree(unpacked / LIBRARY, root / LIBRARY, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for pattern in LEFT_OUT:
            for path in (root / LIBRARY).glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for part in ("lib", "lib64", f"lib/{PLATFORMS[arch]}-linux-gnu", f"usr/lib/{PLATFORMS[arch]}-linux-gnu"):
            _copy_libraries(unpacked, root, part)
        (root / "usr/bin").mkdir()
        shutil.copyfile(unpacked / f"usr/bin/python{VERSION}", root / f"usr/bin/python{VERSION}")
        (root / "usr/bin/python3").symlink_to(f"python{VERSION}")
        _trust(unpacked / "usr/share/ca-certificates/mozilla", root)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    (root / "tmp").mkdir()
    return {one.name: {"version": one.version, "sha256": one.sha256} for one in packages}


def _copy_libraries(unpacked: Path, root: Path, part: str) -> None:
    """The libraries of a folder and the links among them."""
    for path in sorted((unpacked / part).glob("*.so*")):
        if not path.name.startswith(_LIBC_LEFT_OUT):
            target = root / part / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target, follow_symlinks=False)


def _trust(certificates: Path, root: Path) -> None:
    """As update-ca-certificates does, for what looks for one file, and where Debian's OpenSSL looks."""
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True)
    bundle.write_bytes(b"".join(path.read_bytes() for path in sorted(certificates.glob("*.crt"))))
    (root / "usr/lib/ssl").mkdir()
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def _install_wheels(packages: Path, licenses: Path, arch: str) -> dict[str, str]:
    """By pip, which checks their hashes; licences into a folder of ``licenses``. Names and versions."""
    requirements = HERE / "requirements.txt"
    options = ["--no-deps", "--require-hashes", "--target", str(packages), *platform(arch)]
    if subprocess.run([*PIP, *options, "-r", str(requirements)], check=False).returncode != 0:
        raise agent_tree.BuildError(f"pip could not install what {requirements} names")
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for path in sorted(packages.rglob("*")):
        if path.is_file() and _WHEEL_LEFT_OUT.search(str(path.relative_to(packages))):
            path.unlink()
    for path in packages.iterdir():
        if path.is_file() and path.suffix not in (".py", ".so"):  # a project's README and the like
            path.unlink()
    found = {}
    for folder in sorted(packages.glob("*.dist-info")):
        name, version = folder.name.removesuffix(".dist-info").split("-")
        found[name] = version
        for path in sorted(folder.rglob("*")):
            if path.is_file() and re.match(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", path.name, re.I):
                target = licenses / name / path.name
                target.parent.mkdir(exist_ok=True)
                path.rename(target)
    for path in sorted(packages.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the root folder of the operator's image.")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "operator")
    parser.add_argument("--arch", choices=debian_python.ARCHITECTURES, default=None)
    options = parser.parse_args()
    try:
        build(options.output.absolute(), options.arch or debian_python.own_architecture())
    except (agent_tree.BuildError, debian_python.DebianError) as error:
        print(f"operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
