"""The figures of a run, for docs/measured.md. Every number that is quoted anywhere comes from this file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from drainagent import __version__

PATH = Path(os.environ.get("DRAINAGENT_CLUSTER_REPORT") or Path(__file__).parent / ".report" / "kubelet.json")


class Figures:
    """Samples by name; several samples of one name become a median and a worst."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}
        self._told: dict[str, tuple[str, str, bool]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, meaning: str, value: float, unit: str = "s", *, spread: bool = False) -> None:
        """``spread``: many samples, told as median and worst. Without: the last one counts."""
        with self._lock:
            if not spread:
                self._samples[name] = []
            self._samples.setdefault(name, []).append(value)
            self._told[name] = (meaning, unit, spread)

    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for name, samples in sorted(self._samples.items()):
            meaning, unit, spread = self._told[name]
            kinds: Mapping[str, float] = {"": samples[-1]}
            if spread:
                kinds = {", median": statistics.median(samples), ", worst": max(samples)}
            for suffix, value in kinds.items():
                row = {"name": name + suffix, "meaning": meaning, "value": round(value, 3), "unit": unit}
                rows.append({**row, "n": len(samples)})
        return rows

    def write(self, versions: Mapping[str, str], seconds: float, cases: int, failed: int) -> Path:
        with self._lock:
            report = {
                "schema": "drainagent.io/kubelet-report/v1",
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "versions": {"drainagent": __version__, "revision": _revision(), **versions},
                "machine": {"cores": os.cpu_count(), "system": platform.platform()},
                "run": {"cases": cases, "failed": failed, "seconds": round(seconds, 1)},
                "figures": self.rows(),
            }
        PATH.parent.mkdir(parents=True, exist_ok=True)
        PATH.write_text(json.dumps(report, indent=1) + "\n")
        return PATH


def _revision() -> str:
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
