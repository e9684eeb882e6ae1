#!/usr/bin/env python3
"""Writes a container image of one layer to standard output, as a docker-archive. No daemon, no registry.

image.py NAME [--busybox FILE] [--entrypoint 'WORDS'] [--env K=V] [--user UID[:GID]] [TARGET=SOURCE...]

TARGET=SOURCE puts a file, or a folder with all in it, at an absolute path of the image. Everything belongs to root,
with the source's permissions. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nengine:x:1000:1000::/tmp:/bin/sh\n"
GROUP = "root:x:0:\nengine:x:1000:\n"


class Layer:
    """A tar in memory. A folder comes before what is in it, once."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._folders: set[str] = {"", "."}

    def folder(self, target: str, mode: int = 0o755) -> None:
        target = target.strip("/")
        if target in self._folders:
            return
        self.folder(str(Path(target).parent))
        self._folders.add(target)
        self._add(target, tarfile.DIRTYPE, mode)

    def file(self, target: str, content: bytes, mode: int = 0o644) -> None:
        self.folder(str(Path(target.strip("/")).parent))
        self._add(target, tarfile.REGTYPE, mode, content=content)

    def link(self, target: str, to: str) -> None:
        self.folder(str(Path(target.strip("/")).parent))
        self._add(target, tarfile.SYMTYPE, 0o777, to=to)

    def copy(self, target: str, source: Path) -> None:
        if source.is_symlink():
            self.link(target, str(source.readlink()))
        elif source.is_dir():
            self.folder(target, source.stat().st_mode & 0o7777)
            for child in sorted(source.iterdir()):
                self.copy(f"{target.rstrip('/')}/{child.name}", child)
        else:
            self.file(target, source.read_bytes(), source.stat().st_mode & 0o7777)

    def finish(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()

    def _add(self, target: str, kind: bytes, mode: int, *, content: bytes = b"", to: str = "") -> None:
        entry = tarfile.TarInfo(target.strip("/"))
        entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), to
        self._tar.addfile(entry, io.BytesIO(content))


def busybox(layer: Layer, program: Path) -> None:
    """A system to log in to: every applet, two users, a /tmp for all."""
    layer.file("/bin/busybox", program.read_bytes(), 0o755)
    applets = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            layer.link(f"/bin/{applet}", "busybox")
    layer.file("/etc/passwd", PASSWD.encode())
    layer.file("/etc/group", GROUP.encode())
    layer.folder("/root", 0o700)
    layer.folder("/tmp", 0o1777)


def archive(name: str, layer: bytes, *, entrypoint: list[str], env: list[str], user: str) -> bytes:
    """A docker-archive: the layer, the image's configuration, and a manifest that names both."""
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine := platform.machine(), machine),
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": [PATH, *env], "User": user},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    encoded = json.dumps(config).encode()
    config_name = hashlib.sha256(encoded).hexdigest() + ".json"
    outer = Layer()
    outer.file("layer.tar", layer)
    outer.file(config_name, encoded)
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    outer.file("manifest.json", json.dumps(manifest).encode())
    return outer.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("files", nargs="*", metavar="TARGET=SOURCE")
    parser.add_argument("--busybox", type=Path, metavar="FILE", help="a static busybox, with a link for each applet")
    parser.add_argument("--entrypoint", type=shlex.split, default=[])
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("--user", default="")
    arguments = parser.parse_intermixed_args()
    layer = Layer()
    if arguments.busybox:
        busybox(layer, arguments.busybox)
    for pair in arguments.files:
        target, separator, source = pair.partition("=")
        if not (separator and target.startswith("/")):
            parser.error(f"{pair}: TARGET=SOURCE with an absolute TARGET is needed")
        layer.copy(target, Path(source))
    image = archive(
        arguments.name, layer.finish(), entrypoint=arguments.entrypoint, env=arguments.env, user=arguments.user
    )
    sys.stdout.buffer.write(image)


if __name__ == "__main__":
    main()
