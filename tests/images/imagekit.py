"""What the tests of the tree and the images share: builds, mounts of a test's own, containers by runc."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "images" / "agent-tree" / "build.py"
BUILD_IMAGES = REPOSITORY / "images" / "build.sh"
LOCATION = "/opt/drainagent"
NOBODY = 65532

#: `read_only FOLDER COMMAND...`: FOLDER read-only at /opt/drainagent, in a mount namespace that ends with the command.
_READ_ONLY = f"""
mount -t tmpfs tmpfs /opt
mkdir {LOCATION}
mount --bind "$1" {LOCATION}
mount -o remount,bind,ro {LOCATION}
shift
exec "$@"
"""


def read_only(folder: Path, command: Sequence[str | Path]) -> list[str]:
    """``command`` with ``folder`` mounted read-only at /opt/drainagent, for it alone."""
    words = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", _READ_ONLY, "sh", folder, *command]
    return [str(word) for word in words]


def run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str = "/"
) -> subprocess.CompletedProcess[str]:
    """The ended command. No environment unless given."""
    words = [str(word) for word in command]
    return subprocess.run(words, env=dict(env or {}), cwd=cwd, capture_output=True, text=True, check=False)


def build_tree(output: Path, *options: str, repository: Path = REPOSITORY, **how: Any) -> None:
    build = repository / BUILD.relative_to(REPOSITORY)
    subprocess.run([sys.executable, str(build), "--output", str(output), *options], check=True, **how)


def facts(tree: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tree / "build.json").read_text())
    return found


def build_copier(target: Path) -> None:
    subprocess.run([BUILD_IMAGES, "copier", target], check=True)


def listing(folder: Path) -> dict[str, tuple[str, int, str]]:
    """Every path in a folder: its kind, its mode and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        if path.is_symlink():
            entry = ("link", 0, os.readlink(path))
        elif path.is_dir():
            entry = ("folder", mode, "")
        else:
            entry = ("file", mode, hashlib.sha256(path.read_bytes()).hexdigest())
        found[str(path.relative_to(folder))] = entry
    return found


def carrier_folder(tree: Path, copier: Path, target: Path) -> Path:
    """What the carrier image holds, with its program."""
    shutil.copytree(tree, target, symlinks=True)
    shutil.copy2(copier, target / "copy")
    return target


@dataclass(frozen=True)
class Image:
    """An image read from its docker-archive."""

    config: dict[str, Any]
    layers: list[Path]

    def names(self, layer: int) -> list[str]:
        with tarfile.open(self.layers[layer]) as archive:
            return archive.getnames()

    def members(self, layer: int) -> list[tarfile.TarInfo]:
        with tarfile.open(self.layers[layer]) as archive:
            return archive.getmembers()

    def unpack(self, target: Path) -> Path:
        """Its root. The layers only add."""
        target.mkdir(parents=True)
        for layer in self.layers:
            subprocess.run(["tar", "-xpf", str(layer), "-C", str(target)], check=True)
        return target


def read_image(archive: Path, folder: Path) -> Image:
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    [manifest] = json.loads((folder / "manifest.json").read_text())
    config = json.loads((folder / manifest["Config"]).read_text())
    return Image(config, [folder / name for name in manifest["Layers"]])


class Container:
    """A runc container: read-only root, no capability, uid 65532, the machine's network.

    ``mounts``: runc's own form. ``start`` runs it in the background, with its output in ``log``.
    """

    def __init__(
        self, folder: Path, root: Path, argv: Sequence[str], env: Sequence[str] = (), mounts: Sequence[object] = ()
    ) -> None:
        folder.mkdir(parents=True)
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec = json.loads((folder / "config.json").read_text())
        process = spec["process"]
        process.update(terminal=False, user={"uid": NOBODY, "gid": NOBODY}, args=list(argv), env=list(env))
        process["capabilities"] = {name: [] for name in process["capabilities"]}
        spec["root"] = {"path": str(root), "readonly": True}
        spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "network"]
        spec["mounts"] += mounts
        (folder / "config.json").write_text(json.dumps(spec))
        self.folder, self.log = folder, folder / "log"
        self._name = f"drainagent-test-{os.getpid()}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        self._runc = ["runc", "--root", str(folder / "state")]

    def run(self) -> subprocess.CompletedProcess[str]:
        """To its end."""
        return run([*self._runc, "run", "--bundle", self.folder, self._name], os.environ)

    def __enter__(self) -> Container:
        with self.log.open("w") as log:
            command = [*self._runc, "run", "--bundle", str(self.folder), self._name]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """As the kubelet and `kubectl exec` do: in the container's own namespaces, as its user."""
        return run([*self._runc, "exec", self._name, *argv], os.environ)

    def __exit__(self, *exc: object) -> None:
        run([*self._runc, "kill", self._name, "KILL"], os.environ)
        self._process.wait()


def tmpfs(destination: str, *options: str) -> object:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": ["mode=0777", *options]}


def bind(source: Path, destination: str) -> object:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind", "ro"]}
