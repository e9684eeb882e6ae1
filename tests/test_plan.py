"""``drainagent plan``: bounds, the times it derives, its remarks and its drawing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from drainagent import timeline
from drainagent.catalogue import SGLANG, VLLM
from drainagent.workstation.plan import BoundError, Plan, as_json, drawing, plan, words

GRACES = (15, 26, 30, 45, 600, 3600)


def topics(planned: Plan) -> dict[str, str]:
    return {remark.topic: remark.text for remark in planned.remarks}


def warned(planned: Plan) -> set[str]:
    return {remark.topic for remark in planned.remarks if remark.warning}


@pytest.mark.parametrize("grace_s", GRACES)
def test_times_are_those_of_the_timeline(grace_s: float) -> None:
    planned = plan(VLLM, "server", grace_s)
    times = timeline.timeline(grace_s)
    assert planned.settle_until_s == times.settle_until_s == 5
    assert planned.no_read_after_s == times.no_read_after_s == grace_s - 5
    assert planned.back_by_s == times.back_by_s == grace_s - 3
    assert planned.idle_back_s == 6
    assert planned.waited_for_s == grace_s - 5
    assert [step.from_s for step in planned.steps] == sorted(step.from_s for step in planned.steps)


@pytest.mark.parametrize("grace", [14.9, 3600.5, -1, 0, float("nan"), float("inf"), float("-inf")])
def test_a_grace_out_of_bounds_is_named_with_its_value_and_bounds(grace: float) -> None:
    with pytest.raises(BoundError, match=rf"^grace is {grace}: it must be a number from 15 to 3600 seconds\.$"):
        plan(VLLM, "server", grace)


@pytest.mark.parametrize(("size", "notice"), [(0, None), (1001, None), (1, 0.0), (1, float("nan")), (1, 1e9)])
def test_size_and_notice_have_bounds_too(size: int, notice: float | None) -> None:
    with pytest.raises(BoundError, match=r"it must be a number from 1 to"):
        plan(VLLM, "server", 30, size, notice)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_split_sglang_role_is_warned_below_45(kind: str) -> None:
    assert kind in ("prefill", "decode")
    short, long = plan(SGLANG, kind, 30), plan(SGLANG, kind, 45)  # type: ignore[arg-type]
    assert "exit" in warned(short)
    assert "exit" not in warned(long)
    assert "10 s after the delete" in topics(short)["exit"]
    assert "25 s after the delete" in topics(long)["exit"]
    for planned in (short, long):
        assert "0.5.14" in topics(planned)["exit"]
        assert "0.5.23 needs 3 to 5 s" in topics(planned)["exit"]


def test_kv_owed_by_a_vllm_prefill_half_needs_the_shutdown_timeout() -> None:
    assert "--shutdown-timeout" in topics(plan(VLLM, "prefill", 45))["owed KV"]
    assert "owed KV" not in topics(plan(VLLM, "decode", 45))
    assert "owed KV" not in topics(plan(SGLANG, "prefill", 45))


def test_a_short_notice_ends_everything_before_the_kill() -> None:
    planned = plan(VLLM, "server", 60, notice_s=30)
    assert planned.end_s == planned.waited_for_s == 30
    assert "no SIGTERM" in topics(planned)["notice"]
    assert any("! the notice" in line for line in drawing(planned, 100))
    assert any(step.from_s == 30 for step in planned.steps)
    late = plan(VLLM, "server", 60, notice_s=58)
    assert late.end_s == 58
    assert late.waited_for_s == 55
    assert "no SIGTERM" not in topics(late)["notice"]
    covering = plan(VLLM, "server", 60, notice_s=60)
    assert covering.end_s == 60
    assert "changes nothing" in topics(covering)["notice"]
    assert not any("!" in line for line in drawing(covering, 100))


def test_followers_are_told_to_watch_their_leader() -> None:
    assert "followers" not in topics(plan(VLLM, "server", 30))
    planned = plan(VLLM, "server", 30, size=2)
    assert "--leader" in topics(planned)["followers"]
    assert "2 Pods" in topics(planned)["cost"]


@pytest.mark.parametrize("grace_s", GRACES)
@pytest.mark.parametrize("width", [40, 79, 200])
def test_the_drawing_fits_and_shows_every_moment(grace_s: float, width: int) -> None:
    lines = drawing(plan(SGLANG, "server", grace_s), width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].split() == ["0", "5", f"{grace_s - 5:g}", f"{grace_s - 3:g}", f"{grace_s:g}", "s"]
    assert lines[1].count("|") == 5


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_the_words_keep_within_the_width(engine: object) -> None:
    assert engine in (VLLM, SGLANG)
    for line in words(plan(SGLANG if engine is SGLANG else VLLM, "decode", 3600, 4, 30), 80):
        assert len(line) <= 100


def test_json_holds_the_whole_plan() -> None:
    value = json.loads(json.dumps(as_json(plan(SGLANG, "decode", 45, 2, 30))))
    assert value["engine"] == "SGLang"
    assert (value["grace_s"], value["size"], value["notice_s"], value["end_s"]) == (45, 2, 30, 30)
    assert {remark["topic"] for remark in value["remarks"]} == {"cut", "exit", "notice", "followers", "cost"}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from drainagent.workstation.plan import plan_command; plan_command()", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)


def test_the_command_prints_and_ends_with_0() -> None:
    ran = command("--grace", "45", "--engine", "sglang", "--kind", "decode", "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["back_by_s"] == 42
    assert "the kubelet kills" in command("--grace", "45").stdout


@pytest.mark.parametrize("grace", ["nan", "inf", "soon", "14", ""])
def test_a_wrong_grace_ends_the_command_with_2_and_one_sentence(grace: str) -> None:
    ran = command("--grace", grace)
    assert ran.returncode == 2
    assert f"grace is {grace}: it must be a number from 15 to 3600 seconds." in ran.stderr
