"""CPU of one reading of each page file, beside a full parse by prometheus-client: a line of JSON a page, in seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from drainagent.page import read_page

_ROUNDS = 7


def _best_s(work: Callable[[], object], repeats: int) -> float:
    """The least CPU of one call: what else runs on the machine can only add."""
    found = []
    for _ in range(_ROUNDS):
        start_s = time.process_time()
        for _ in range(repeats):
            work()
        found.append((time.process_time() - start_s) / repeats)
    return min(found)


def main() -> None:
    for name in sys.argv[1:]:
        body = Path(name).read_bytes()
        read_s = _best_s(lambda body=body: read_page(body), 40)  # type: ignore[misc]
        parse_s = _best_s(
            lambda body=body: [len(family.samples) for family in text_string_to_metric_families(body.decode())],  # type: ignore[misc]
            1,
        )
        print(json.dumps({"page": name, "read_s": read_s, "parse_s": parse_s}), flush=True)


if __name__ == "__main__":
    main()
