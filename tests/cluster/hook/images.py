"""The images on the node: built from the tree and loaded, once for each state of what they are made of.

``python tests/cluster/hook/images.py`` does it by hand. Needs what images/README.md needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script

from kube import CLUSTER, load_image

from drainagent import __version__

REPOSITORY = Path(__file__).resolve().parents[3]
PREFIX = "localhost/drainagent"
AGENT = f"{PREFIX}/agent:{__version__}"
STANDIN = f"{PREFIX}/standin:{__version__}"
STANDIN_WITH_AGENT = f"{STANDIN}-agent"
BUSYBOX = "localhost/busybox:rig"

TARGETS = {AGENT: "carrier", STANDIN: "standin", STANDIN_WITH_AGENT: "standin-agent"}
#: What the images are made of: of the workstation's modules the stand-in alone, which imports no other.
SOURCES = ("drainagent/*.py", "drainagent/workstation/standin.py", "images/**/*", "LICENSE")
#: Archives, buildah's storage, and what was loaded from which sources.
CACHE = Path(os.environ.get("DRAINAGENT_CLUSTER") or Path.home() / ".cache" / "drainagent" / "cluster") / "images"


def on_the_node() -> None:
    """Builds what is out of date and loads what the node does not have. A minute when anything is to be built."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several suites may start at once
        record = CACHE / "record.json"
        known = json.loads(record.read_text()) if record.exists() else {}
        sources = _digest_of_sources()
        if known.get("sources") != sources or not all(_archive(name).exists() for name in TARGETS):
            _build()
            known = {"sources": sources, "loaded": {}}
        there = _digests_on_the_node()
        for name in TARGETS:
            if name not in there or there[name] != known["loaded"].get(name):
                load_image(_archive(name))
        there = _digests_on_the_node()
        known["loaded"] = {name: there[name] for name in TARGETS}
        record.write_text(json.dumps(known))


def _build() -> None:
    missing = [tool for tool in ("buildah", "go", "patchelf") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"the images need {', '.join(missing)} (images/README.md names the packages)")
    # One version of a Python is enough here: the tests of the images build the tree with all.
    options = ["--any-python", "--tag-prefix", PREFIX, "--root", str(CACHE / "storage"), "--archive", str(CACHE)]
    done = subprocess.run(
        [REPOSITORY / "images" / "build.sh", *options, *TARGETS.values()],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"images/build.sh: exit status {done.returncode}: {done.stderr[-2000:]}")


def _archive(name: str) -> Path:
    return CACHE / (name.replace("/", "-").replace(":", "-") + ".tar")


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        for file in sorted(REPOSITORY.glob(source)):
            if file.is_file() and file.suffix not in {".pyc", ".md"}:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(REPOSITORY)} {file.stat().st_mode & 0o777:o} {content}\n".encode())
    return digest.hexdigest()


def _digests_on_the_node() -> dict[str, str]:
    listing = subprocess.run([CLUSTER, "ctr", "images", "ls"], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listing.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


if __name__ == "__main__":
    on_the_node()
