"""The operator's image on the node: built from the tree and loaded, once for each state of what it is made of.

``python tests/cluster/operator_image.py`` does it by hand. Needs what images/README.md needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where another suite imports it

from hook.images import CACHE, PREFIX, REPOSITORY
from kube import CLUSTER, load_image

from drainagent import __version__

OPERATOR = f"{PREFIX}/operator:{__version__}"
SOURCES = (
    "drainagent/**/*.py",
    "operator_glue/**/*.py",
    "operator_glue/*.json",
    "images/build.sh",
    "images/agent-tree/*.py",
    "images/operator/*",
    "LICENSE",
)
_ARCHIVE = CACHE / f"{OPERATOR.replace('/', '-').replace(':', '-')}.tar"


def on_the_node() -> str:
    """Its name. Half a minute when it is to be built, and a quarter when it is to be loaded."""
    CACHE.mkdir(parents=True, exist_ok=True)
    # The other images' lock: build.sh has one folder that it builds from.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = CACHE / "operator.json"
        known = json.loads(record.read_text()) if record.exists() else {}
        sources = _digest_of_sources()
        if known.get("sources") != sources or not _ARCHIVE.exists():
            _build()
            known = {"sources": sources, "loaded": None}
        if known["loaded"] is None or _digest_on_the_node() != known["loaded"]:
            load_image(_ARCHIVE)
            known["loaded"] = _digest_on_the_node()
        record.write_text(json.dumps(known))
    return OPERATOR


def _build() -> None:
    options = ["--tag-prefix", PREFIX, "--root", str(CACHE / "storage"), "--archive", str(CACHE)]
    done = subprocess.run(
        [REPOSITORY / "images" / "build.sh", *options, "operator"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"images/build.sh operator: exit status {done.returncode}: {done.stderr[-2000:]}")


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for file in sorted(file for source in SOURCES for file in REPOSITORY.glob(source)):
        if file.is_file() and file.suffix != ".pyc":
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(REPOSITORY)} {file.stat().st_mode & 0o777:o} {content}\n".encode())
    return digest.hexdigest()


def _digest_on_the_node() -> str | None:
    """None where it is not there."""
    listing = subprocess.run([CLUSTER, "ctr", "images", "ls"], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in listing.splitlines()[1:])
    return next((row[2] for row in rows if row[0] == OPERATOR), None)


if __name__ == "__main__":
    print(on_the_node())
