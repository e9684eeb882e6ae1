"""The wall clock, for people who read logs; nothing is decided by it."""

from __future__ import annotations

import time


def now_rfc3339() -> str:
    """Now in UTC with milliseconds, as RFC 3339."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
