"""drainagent: lets an inference replica leave without cutting a request."""

from __future__ import annotations

__version__ = "0.1.0"


def number(text: str) -> float | None:
    """A finite decimal number, else None. Python's float also takes words (nan, inf) and underscores: not here.

    It stands here because the hook needs it before any other module has been imported.
    """
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
