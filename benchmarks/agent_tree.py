"""What the agent's tree costs where it is used: the hook's start from a read-only mount, and the carrier's copy.

``python -m benchmarks.agent_tree [--quick] [--report FILE] [--no-fail]``, as root (it mounts, in a namespace of its
own), with Go and what ``make agent-tree PYTHON_INSIDE=1`` needs. How a start is measured is in run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.run import GRACE_S, IDLE_PAGE, PAGES, REPOSITORY, Child, Figure, Server, show

BUILD = REPOSITORY / "images" / "agent-tree" / "build.py"
#: The carried interpreter runs there and nowhere else; the others could be anywhere.
LOCATION = Path("/opt/drainagent")
MAX_START_CPU_S, MAX_COPY_S, MAX_TREE_MIB = 0.3, 0.5, 12.0
#: A tenth of a core: what an init container is often given.
PERIOD_US, QUOTA_US = 100_000, 10_000


def built(folder: Path) -> tuple[Path, Path, Path]:
    """The tree, the tree with an interpreter and the copier."""
    trees = [folder / "agent-tree", folder / "agent-tree-python"]
    for tree, options in zip(trees, ([], ["--with-python"]), strict=True):
        subprocess.run([sys.executable, BUILD, "--output", tree, *options], check=True)
    copier = folder / "copy"
    subprocess.run([REPOSITORY / "images" / "build.sh", "copier", copier], check=True)
    return trees[0], trees[1], copier


def mount_read_only(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    subprocess.run(["mount", "--bind", source, target], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)


def pythons() -> dict[str, str]:
    lines = subprocess.run([sys.executable, BUILD, "--list-pythons"], check=True, stdout=subprocess.PIPE, text=True)
    found = {}
    for line in lines.stdout.splitlines():
        version, _, path = line.partition(" ")
        found[version] = path
    return found


def starts(tree: Path, without_bytecode: Path, own: Path, count: int) -> list[Figure]:
    """CPU up to a SIGTERM 2.5 s into the settle, when the hook has long been waiting for its first read."""
    server = Server([PAGES / IDLE_PAGE])
    hook = ["hook", "--engine", "vllm", "--url", f"http://127.0.0.1:{server.ports[0]}/metrics", "--grace", str(GRACE_S)]
    pairs = {f"Python {version}": (python, tree, without_bytecode) for version, python in pythons().items()}
    pairs["own interpreter"] = (str(own / "python" / "bin" / "python3"), own, without_bytecode)
    figures = []
    for name, (python, *trees) in pairs.items():
        cpu: list[list[float]] = [[], []]
        for _ in range(count):
            children = [Child([python, "-ISB", str(one), *hook]) for one in trees]
            time.sleep(2.5)
            for child, found in zip(children, cpu, strict=True):
                child.signal(signal.SIGTERM)
                found.append(child.join().cpu_s)
        meaning = f"CPU until the hook waits for its first read, read-only, {name}; beside the same without bytecode"
        value, beside = (statistics.median(found) for found in cpu)
        figures.append(Figure(f"start-up CPU, {name}", meaning, "s", value, beside, MAX_START_CPU_S, False, cpu[0]))
    server.close()
    return figures


@contextmanager
def tenth_of_a_core() -> Iterator[Path | None]:
    """The file that a process writes its number to so as to get no more than that; None where there are no cgroups."""
    name = f"drainagent-bench-{os.getpid()}"
    groups = Path("/sys/fs/cgroup")
    first = (groups / "cpu" / "cpu.cfs_quota_us").exists()
    group = groups / "cpu" / name if first else groups / name
    try:
        group.mkdir()
        if first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
    except OSError as error:
        print(f"no limit of CPU can be set here: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def copies(tree: Path, copier: Path, what: str, folder: Path, count: int, *, limit: float | None) -> list[Figure]:
    """Wall time of the copier, start included, into a new folder each time: on this disk and in memory."""
    carrier = folder / "carrier"
    shutil.copytree(tree, carrier)
    shutil.copy2(copier, carrier / "copy")
    memory = folder / "memory"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", memory], check=True)
    disk = folder / "disk"
    disk.mkdir()
    figures = []
    with tenth_of_a_core() as group:
        limits: list[tuple[str, str, Path | None]] = [("", "", None)]
        if group is not None:
            limits.append((", a tenth of a core", " with a tenth of a core", group))
        for name, meaning, procs in limits:
            for place in (disk, memory):
                times = [_copy_s(carrier, place / f"{procs is None}-{number}", procs) for number in range(count)]
                where = "disk" if place == disk else "memory"
                figures.append(
                    Figure(
                        f"copy to {where}, {what}{name}",
                        f"wall time of the carrier's copier ({what}){meaning}, to a new folder on {where}: median",
                        "s",
                        statistics.median(times),
                        None,
                        limit if procs is None else None,
                        False,
                        times,
                    )
                )
    subprocess.run(["umount", memory], check=True)
    for left in (carrier, disk, memory):
        shutil.rmtree(left)
    return figures


def _copy_s(carrier: Path, dest: Path, procs: Path | None) -> float:
    command: Sequence[str | Path] = [carrier / "copy", dest]
    if procs is not None:
        command = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', procs, *command]
    started_s = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started_s


def sizes(tree: Path, own: Path, copier: Path) -> list[Figure]:
    def mib(path: Path) -> float:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        return sum(one.stat().st_size for one in files) / 2**20

    return [
        Figure("size", "bytes in the tree's files", "MiB", mib(tree), None, MAX_TREE_MIB, False),
        Figure("size with an interpreter", "the same of the tree that carries one", "MiB", mib(own)),
        Figure("size of the copier", "the carrier's only program", "MiB", mib(copier)),
    ]


def measure(quick: bool) -> list[Figure]:
    """In a mount namespace of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", LOCATION.parent], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, own, copier = built(folder)
        without = folder / "without"
        shutil.copytree(tree, without, ignore=shutil.ignore_patterns("__pycache__"))
        places = {LOCATION.with_name("tree"): tree, LOCATION.with_name("without"): without, LOCATION: own}
        for place, source in places.items():
            mount_read_only(source, place)
        try:
            figures = sizes(tree, own, copier)
            tree_place, without_place, own_place = places
            figures += starts(tree_place, without_place, own_place, 3 if quick else 10)
            for what, source, limit in (("tree", tree, MAX_COPY_S), ("with an interpreter", own, None)):
                figures += copies(source, copier, what, folder, 3 if quick else 10, limit=limit)
        finally:
            for place in places:
                subprocess.run(["umount", place], check=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="What the agent's tree costs: start, copy, size.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures as JSON too")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.in_namespace:
        again = [sys.executable, "-m", "benchmarks.agent_tree", "--in-namespace", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *again])
    figures = measure(options.quick)
    show(figures)
    if options.report is not None:
        document = [{**asdict(one), "ratio": one.ratio, "over": one.over} for one in figures]
        options.report.write_text(json.dumps({"quick": options.quick, "figures": document}, indent=2) + "\n")
    over = any(one.over for one in figures)
    return 1 if over and not options.no_fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
