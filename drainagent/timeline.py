"""The drain window's constants and the times they give for one grace. Pure; every time is in seconds from the delete.

The hook cannot see the delete: its own process start, some 60 ms later on a quiet node, stands in for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Kubernetes' own default for terminationGracePeriodSeconds, and ours when a role sets none.
DEFAULT_GRACE_S = 30
#: Admission takes a grace from 15 to 3600 (the user's document, "Drain window").
MIN_GRACE_S, MAX_GRACE_S = 15, 3600
#: The settle: requests that a router sent before it learned of the delete land here; nothing is read.
SETTLE_S = 5.0
#: No read starts after G - 5 ...
LAST_READ_BEFORE_KILL_S = 5.0
#: ... and the hook is back by G - 3, so that the engine has 3 s between SIGTERM and the kill.
BACK_BEFORE_KILL_S = 3.0
#: One read a second, start to start.
READ_PERIOD_S = 1.0
#: Where in its second each read of a leader lies, in turn. A leader reads at one place in the second, most often the
#: follower's own full one (both were deleted at once), and would take a follower that reads at the same moment for a
#: client. So the place moves: wherever the leader reads, two of its reads in three, in a row, are alone.
LEADER_READ_PLACES_S = (0.5, 0.25, 0.75)
#: A whole read (connect, header, body) takes no longer than this: what lies between G - 5 and G - 3.
READ_BOUND_S = LAST_READ_BEFORE_KILL_S - BACK_BEFORE_KILL_S
#: The hook returns on this many consecutive idle reads.
IDLE_READS = 2
#: The hook aims to be back this long before G - 3, so that the process is gone by then on a busy node too.
EXIT_MARGIN_S = 0.25
#: The watchdog ends the process this long before G - 3 when nothing else has.
WATCHDOG_MARGIN_S = 0.1

#: An SGLang prefill or decode role of releases like 0.5.14 needs up to this after SIGTERM, even idle (the user's
#: document, "Drain window") ...
SPLIT_EXIT_S = 20
#: ... and so should have about this grace (same place).
SPLIT_GRACE_S = 45
#: Idle halves of SGLang 0.5.23 were gone this long after SIGTERM (evidence.md §10).
SPLIT_EXIT_0_5_23_S = (3, 5)


@dataclass(frozen=True)
class Timeline:
    """When the hook may do what, in seconds from its process start. ``None``: no bound of its own (grace unknown)."""

    grace_s: float | None
    settle_until_s: float
    no_read_after_s: float | None
    back_by_s: float | None

    @property
    def watchdog_s(self) -> float | None:
        """When the process is ended whatever its code does."""
        return None if self.back_by_s is None else self.back_by_s - WATCHDOG_MARGIN_S

    def read_bound_s(self, started_s: float) -> float:
        """The longest a read that starts at ``started_s`` may take: 2 s, less where G - 3 is nearer."""
        if self.back_by_s is None:
            return READ_BOUND_S
        return max(0.0, min(READ_BOUND_S, self.back_by_s - EXIT_MARGIN_S - started_s))


def next_slot_s(first_s: float, started_s: float, ended_s: float) -> float:
    """When the read after one from ``started_s`` to ``ended_s`` is due, on the grid of reads that began at ``first_s``.

    Reads do not drift or overlap. One that began late (the process was put aside) is no neighbour of the next: half a
    period lies between them at the least, so that two idle reads in a row are never one moment seen twice.
    """
    after_s = max(ended_s, started_s + READ_PERIOD_S / 2)
    return first_s + (math.floor((after_s - first_s) / READ_PERIOD_S) + 1) * READ_PERIOD_S


def timeline(grace_s: float | None, settle_s: float = SETTLE_S) -> Timeline:
    """The timeline of a grace. Any finite grace is taken as it is; the settle of 5 s is kept whatever the grace says.

    ``grace_s`` None (missing or no number): no deadline of the hook's own; the kubelet enforces the grace.
    ``settle_s`` below 5 counts as 5; one that reaches past G - 5 ends there. A grace too short for the settle keeps
    the settle whole and a moment to leave.
    """
    settle_s = max(SETTLE_S, settle_s)
    if grace_s is None or not math.isfinite(grace_s):
        return Timeline(None, settle_s, None, None)
    no_read_after_s = grace_s - LAST_READ_BEFORE_KILL_S
    return Timeline(
        grace_s=grace_s,
        settle_until_s=max(SETTLE_S, min(settle_s, no_read_after_s)),
        no_read_after_s=no_read_after_s,
        back_by_s=max(SETTLE_S + 2 * EXIT_MARGIN_S, grace_s - BACK_BEFORE_KILL_S),
    )
