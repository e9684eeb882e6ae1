"""Runs the suite and says at its end how many deletes were made and what was lost.

    python tests/operator/e2e/run.py [--short] [--retry] [PYTEST OPTIONS]

--short: with the real engines the scale-down alone. --retry: what failed runs once more, since the cases watch a clock
on a machine that may be busy; a stream that was lost stays lost.
Exit status: 0; 1 when a case failed, or a stream was lost that should not be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: Each with an operator for its own namespace, so that they run beside each other.
BESIDE = ("vllm_router", "sglang_gateway", "without_a_router", "lease")
#: Kueue's webhooks see every Pod, the installed operator works in every namespace, the real engines want the machine.
ALONE = ("kueue", "installed", "real_engines")


def main(arguments: list[str]) -> int:
    short, retry = "--short" in arguments, "--retry" in arguments
    options = [one for one in arguments if one not in ("--short", "--retry")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "cases.jsonl"
        report.touch()
        environment = {**os.environ, "DRAINAGENT_E2E_REPORT": str(report)}

        def pytest(*words: str) -> int:
            command = [sys.executable, "-m", "pytest", *words, *options]
            status = subprocess.run(command, env=environment, check=False).returncode
            if status and retry:
                print("== what failed runs once more", flush=True)
                command += ["--last-failed", "--last-failed-no-failures=none"]
                status = subprocess.run(command, env=environment, check=False).returncode
            return status

        def files(names: tuple[str, ...]) -> list[str]:
            return [str(HERE / f"test_{name}.py") for name in names]

        picked = ["-k", "kueue or installed or scaled_down_under"] if short else []
        status = pytest("-n", "3", "--dist", "loadfile", *files(BESIDE))
        status = pytest(*files(ALONE), *picked) or status
        cases = [json.loads(line) for line in report.read_text().splitlines()]
    return told(cases) or int(status != 0)


def told(cases: list[dict[str, object]]) -> int:
    """Prints what was done; 1 where something was lost."""
    deletes = requests = 0
    lost: list[str] = []
    cut: list[str] = []
    print(f"\n{'case':72} {'deletes':>7} {'streams':>7} {'lost':>5}")
    for case in cases:
        those, expected = case["lost"], case["expected"]
        assert isinstance(those, list)
        assert isinstance(expected, list)
        print(f"{case['case']!s:72} {case['deletes']:>7} {case['requests']:>7} {len(those):>5}")
        deletes += int(str(case["deletes"]))
        requests += int(str(case["requests"]))
        lost += [f"{case['case']}: {one}" for one in those]
        cut += [f"{case['case']}: {one}" for one in expected]
    print(f"\n{deletes} Pods deleted, {requests} streams, {len(lost)} lost")
    print("\n".join(lost))
    print(f"still running at G - 5, and so cut: {len(cut)}")
    print("\n".join(cut))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
