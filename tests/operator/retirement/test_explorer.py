"""The protocol on every small world that there is, within bounds: no rule of ``RULES`` is broken.

``DRAINAGENT_EXPLORE=full`` takes the wider bounds (``make test-protocol``). What was explored is said with ``-s``, and
by the summary of ``make test-protocol``.
"""

from __future__ import annotations

import os

import pytest
from explorer import WORLDS, explore_all, same_end

FULL = os.environ.get("DRAINAGENT_EXPLORE") == "full"

#: From each world along a friendly run: passes, acts of another hand, leaps of the clock.
BOUNDS = [(1, 1, 1), (2, 1, 0), (3, 0, 1)] if FULL else [(1, 1, 0)]
#: One of so many worlds is left alone to its end: some hundred passes each.
LIVE_EVERY = 500 if FULL else 250


@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda bounds: "passes {} mischief {} leaps {}".format(*bounds))
@pytest.mark.parametrize("shape", WORLDS)
def test_no_rule_is_broken(shape: str, bounds: tuple[int, int, int]) -> None:
    passes, mischief, jumps = bounds
    found = explore_all(shape, passes=passes, mischief=mischief, jumps=jumps, live_every=LIVE_EVERY)
    print(f"explored {shape}, {passes} passes, {mischief} acts of another hand, {jumps} leaps: {found}")
    assert found.broken is None, str(found)
    assert found.exhausted


@pytest.mark.parametrize("shape", WORLDS)
def test_a_killed_operator_comes_to_the_same_end(shape: str) -> None:
    assert same_end(WORLDS[shape]) > 0
