"""Writes requirements.txt beside it: what the extra `operator` resolves to today, one release a line, by its hashes.

``python images/operator/lock.py``. pip resolves it for each architecture of the image; the releases must be the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import build_root

HERE = Path(__file__).resolve().parent
_HEAD = """\
# What the operator's image carries beside the package itself: wheels for CPython {version} on {architectures}.
# Written by images/operator/lock.py.
"""


def resolved(arch: str) -> list[dict[str, Any]]:
    """pip's own report: what it would install, but the package itself."""
    asked = [*build_root.PIP, "--dry-run", "--ignore-installed", "--report", "-", *build_root.platform(arch)]
    command = [*asked, "--target", "unused", f"{build_root.REPOSITORY}[operator]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return [one for one in found if one["metadata"]["name"] != "drainagent"]


def main() -> None:
    hashes: dict[str, set[str]] = {}
    for arch in build_root.PLATFORMS:
        for one in resolved(arch):
            line = f"{one['metadata']['name'].lower().replace('_', '-')}=={one['metadata']['version']}"
            hashes.setdefault(line, set()).add(one["download_info"]["archive_info"]["hashes"]["sha256"])
    names = [line.partition("==")[0] for line in hashes]
    if len(names) != len(set(names)):
        sys.exit("the architectures resolve to different releases")
    lines = [f"{line} {' '.join(f'--hash=sha256:{one}' for one in sorted(hashes[line]))}\n" for line in sorted(hashes)]
    head = _HEAD.format(version=build_root.VERSION, architectures=" and ".join(build_root.PLATFORMS))
    (HERE / "requirements.txt").write_text(head + "".join(lines))


if __name__ == "__main__":
    main()
