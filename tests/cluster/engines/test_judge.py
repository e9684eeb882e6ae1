"""Each expectation of the suite can break: judged on logs and answers made up here, without a cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from load import Answer, Client, ClientPlan, Request, Target
from suite import attempts

from engines.cases import Case, Router
from engines.pods import Line, PodLoad, Story
from engines.run import Trial, judge

GRACE_S = 60
PLANS = (ClientPlan((Request(-1),)), ClientPlan((Request(4),)))


def hook(at: float, text: str) -> Line:
    return Line(at, f"drainagent: {at:6.1f} s: {text}")


STORY = Story(
    hook=(
        hook(0.1, "keeps serving for 5 s, then reads vLLM"),
        hook(5.0, "the settle is over; reading"),
        hook(5.1, "busy ConnectionsOpen: Clients are connected."),
        hook(13.0, "idle: Every gauge is zero and nothing is in flight."),
        hook(14.0, "outcome idle after 14.0 s: 2 idle reads in a row"),
    ),
    reads=(5.1, 6.1, 13.0, 14.0),
    answered=2,
    sigterm=14.02,
    ended=15.0,
)


def case(name: str = "case", *, router: Router | None = None, cut: int = 0) -> Case:
    return Case(name, "", "vllm", PLANS, (1, 1), router, grace_s=GRACE_S, cut=cut, shows=("ConnectionsOpen",))


def finished(sent: float, ended: float) -> Answer:
    return Answer(Request(sent), sent, sent, ended, None)


def cut(sent: float, ended: float) -> Answer:
    return Answer(Request(sent), sent, sent, ended, "stream ended without a finish_reason")


def judged(told: Story, answers: list[Answer], tried: Case) -> Trial:
    load = PodLoad(PLANS, Target(8000), 0.0)
    load.clients = [Client(plan, Target(8000), 0.0) for plan in PLANS]
    load.clients[0].answers = answers
    trial = Trial(tried.name, "", "vllm", tried.router, tried.hook, None, GRACE_S)
    judge(trial, tried, told, load, deleted=0.0, wall=0.0)
    return trial


ANSWERS = [finished(-1, 8), finished(4, 12)]


def test_a_trial_that_went_well_holds() -> None:
    trial = judged(STORY, ANSWERS, case())
    assert (trial.held, trial.lost, trial.met, trial.reads, trial.returned_s) == (True, 0, 0, 4, 14.0), trial.broken


def at(*hook_lines: Line) -> Story:
    return replace(STORY, hook=hook_lines)


LINES = STORY.hook


@pytest.mark.parametrize(
    ("told", "answers", "words"),
    [
        (STORY, [finished(-1, 8), cut(4, 14.1)], "lost: sent at 4.0 s"),
        (STORY, [finished(-1, 8), cut(4, 9)], "lost: sent at 4.0 s"),
        (STORY, [finished(-1, 8), finished(4, 14.5)], "1 requests were met by SIGTERM"),
        (STORY, [finished(-1, 8)], "1 of 2 requests were sent"),
        (replace(STORY, answered=0), ANSWERS, "answered 0 requests"),
        (replace(STORY, sigterm=None), ANSWERS, "no SIGTERM"),
        (replace(STORY, sigterm=13.9), ANSWERS, "SIGTERM -0.10 s after"),
        (replace(STORY, sigterm=18.0), ANSWERS, "SIGTERM 4.00 s after"),
        (replace(STORY, reads=(4.5, 6.0)), ANSWERS, "inside the settle"),
        (replace(STORY, reads=(5.1,)), ANSWERS, "1 reads"),
        (at(*LINES[1:]), ANSWERS, "'keeps serving for 5 s' is not once"),
        (at(LINES[0], *LINES[2:]), ANSWERS, "'the settle is over' is not once"),
        (at(*LINES, hook(14.1, "waiting")), ANSWERS, "the outcome is not the hook's last line"),
        (at(*LINES[:4]), ANSWERS, "the outcome is not the hook's last line"),
        (at(LINES[0], hook(4.9, "the settle is over"), *LINES[2:]), ANSWERS, "inside the settle"),
        (at(*LINES[:2], *LINES[3:]), ANSWERS, "nothing was shown"),
        (at(*LINES[:3], hook(18.0, "idle: x"), hook(19.0, "outcome idle after 19.0 s: x")), ANSWERS, "without a line"),
        (at(*LINES[:4], hook(14.0, "outcome deadline after 14.0 s: x")), ANSWERS, "outcome deadline, not idle"),
        (at(*LINES[:4], hook(57.5, "outcome idle after 57.5 s: x")), ANSWERS, "after G - 3"),
    ],
)
def test_what_did_not_hold_is_named(told: Story, answers: list[Answer], words: str) -> None:
    trial = judged(told, answers, case())
    assert any(words in fault for fault in trial.broken), trial.broken


def test_a_request_that_a_router_takes_for_wrong_shows_nothing() -> None:
    wrong = Answer(Request(4), 4, 4, 4.1, "status 422: what is this")
    trial = judged(STORY, [finished(-1, 8), wrong], case(router="sglang-router"))
    assert any("refused as wrong" in fault for fault in trial.broken), trial.broken


def test_a_request_past_the_last_read_is_nobodys_fault() -> None:
    late = replace(STORY, sigterm=55.5)
    trial = judged(late, [finished(-1, 8), cut(4, 55.6)], case())
    assert (trial.lost, trial.met) == (0, 1)


@pytest.mark.parametrize(
    ("answer", "lost", "by_router"),
    [
        (cut(4, 14.1), 1, 0),  # running at SIGTERM
        (cut(4, 9), 0, 1),  # the replica still served everything
        (cut(20, 20.1), 0, 1),  # sent on to a replica that was gone
        (finished(4, 20), 0, 0),
    ],
)
def test_behind_a_router_a_loss_has_an_owner(answer: Answer, lost: int, by_router: int) -> None:
    trial = judged(STORY, [finished(-1, 8), answer], case(router="vllm-router"))
    assert (trial.lost, trial.lost_by_router, trial.held) == (lost, by_router, not lost)


@pytest.mark.parametrize(
    ("told", "answers", "words"),
    [
        (replace(STORY, hook=(), sigterm=0.1), ANSWERS, "0 lost without a hook"),
        (replace(STORY, sigterm=0.1), [cut(-1, 0.2), cut(4, 4)], "a hook's line in the log"),
    ],
)
def test_a_pod_without_the_hook(told: Story, answers: list[Answer], words: str) -> None:
    trial = judged(told, answers, replace(case(cut=1), hook="none"))
    assert any(words in fault for fault in trial.broken), trial.broken


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("broken", [[False], [True, True], [True, False]])
def test_what_broke_is_made_once_more_where_that_is_asked(broken: list[bool], retry: bool) -> None:
    left = map(trial_of, broken)
    found = list(attempts(lambda: next(left), retry=retry))
    again = retry and broken[0]
    assert len(found) == 1 + again
    assert [one.retried for one in found] == [again, False][: len(found)]


def trial_of(broken: bool) -> Trial:
    return Trial("case", "what", "vllm", None, "none", None, 30, broken=["it broke"] if broken else [])
