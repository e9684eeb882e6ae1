"""The step function, broken on purpose: the explorer finds each of these, by the rule that it breaks."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from explorer import explore_all
from model_cluster import Protocol

from operator_glue.retirement import step as real

SOURCE = Path(str(real.__file__)).read_text(encoding="utf-8")

#: What is broken; the text and what stands in its place; the shape of cluster; the rules of which one catches it.
MUTATIONS = {
    "one idle read is enough": ("    if not proven(reading):\n", "    if not reading.idle_reads:\n", "one of two", {1}),
    "the label is not looked at again": (
        "    elif any(member.serving for member in alive):\n",
        "    elif False:\n",
        "one of two",
        {1},
    ),
    "the routers are not asked again": (
        "    if hold is None and not view.proven:\n        hold = view.reason, view.message\n",
        "",
        "one of two",
        {1},
    ),
    "evidence of a pass that was cut is believed": (
        '    if not _is_issued(op, captured):\n        message = f"Nothing of',
        '    if False:\n        message = f"Nothing of',
        "one of two",
        {1, 12},
    ),
    "a stale cache says whether something is deleted": (
        "        captured = tuple(sorted((one for one in looked.live if one.uid in op.member_uids), key=_by_index))\n",
        "",
        "one of two",
        {4, 6},
    ),
    "the first deletes rest on nothing that was seen": (
        "DeletePod(member.uid, member.name, member.resource_version) for member in captured if",
        "DeletePod(member.uid, member.name, None) for member in captured if",
        "one of two",
        {1, 4},
    ),
    "the Workload goes while a Pod runs": (
        "    op = _with_workload(op, draft.seen)\n    # Of an ordinal",
        "    op = _with_workload(op, draft.seen)\n"
        "    draft.effects.append(DeleteWorkload(op.workload_uid or '', '', op.key))\n    # Of an ordinal",
        "under Kueue",
        {3},
    ),
    "a budget begins anew with each pass": (
        "    op = _begun_by(op, now)\n",
        "    op = replace(op, phase_started_at=now, deadline=now + 300, started_at=now)\n",
        "no router",
        {5, 9},
    ),
    "a bound is not looked at": (
        "    if now >= bound:\n        _abort",
        "    if False:\n        _abort",
        "no router",
        {5},
    ),
    "it aborts while it deletes": (
        "    if op.state in _ABORTABLE:\n        _advance_abortable",
        "    if op.state in _ABORTABLE or op.state is State.DELETING:\n        _advance_abortable",
        "under Kueue",
        {2, 5, 6, 9},
    ),
    "an Aborted one blocks the queue": (
        "    if _running(draft.persisted) is None:\n",
        "    if _running(draft.persisted) is None and not draft.persisted.retained:\n",
        "two that stay busy",
        {8},
    ),
    "the annotation goes first": (
        "    _admit(draft, kept.key, kept, request.token)\n",
        "",
        "no router",
        {9, 11},
    ),
    "a wanted replica is removed": (
        "        if key.ordinal >= seen.roles.get(key.role, 0) and",
        "        if key.ordinal >= seen.roles.get(key.role, 0) - 1 and",
        "one of two",
        {8, 9, 12},
    ),
    "nothing is restored after a scale-up": (
        "    draft.effects += [SetServing(member.uid, member.name, True) for member in unlabelled]\n",
        "",
        "one of two",
        {9, 12},
    ),
}


def broken_copy(name: str, text: str, instead: str) -> Protocol:
    """The module with one place of its text changed, which has to be there once."""
    assert SOURCE.count(text) == 1, f"{name}: its text stands in step.py {SOURCE.count(text)} times"
    module = types.ModuleType(f"step_broken_{abs(hash(name))}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(SOURCE.replace(text, instead), f"<step.py, {name}>", "exec"), module.__dict__)
    return Protocol(module.look, module.step)


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_caught(name: str) -> None:
    text, instead, shape, rules = MUTATIONS[name]
    protocol = broken_copy(name, text, instead)
    for passes, mischief, jumps in ((1, 0, 1), (1, 1, 0), (2, 1, 0)):
        found = explore_all(shape, protocol, passes=passes, mischief=mischief, jumps=jumps, live_every=40)
        if found.broken is not None:
            break
    assert found.broken is not None, str(found)
    assert found.broken.rule in rules, str(found)
