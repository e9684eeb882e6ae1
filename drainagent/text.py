"""Text that somebody else chose, made fit to be said. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with its control characters and the like written as escapes: it may end in a terminal."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
