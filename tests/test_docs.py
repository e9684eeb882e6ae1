"""The docs say what the code does."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_made_pages_are_current() -> None:
    """Run ``make docs`` when this fails."""
    for name, text in runpy.run_path(str(DOCS / "generate.py"))["pages"]().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name
