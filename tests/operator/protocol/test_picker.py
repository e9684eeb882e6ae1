"""Withdrawal behind llm-d-router, against OUR STAND-IN of the endpoint picker at the real API server.

Engines' Pods are objects alone, which no node has and whose status is written here. Each trap of evidence §5b holds
with its own reason, or is waited out; and once the withdrawal is proven the picker sends nothing to the target.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from api_path import cutting_proxy, through
from kube import Kube as Kubectl
from picker_standin import POOL, PickerStandin

from operator_glue import names
from operator_glue.model import RouterName
from operator_glue.retirement.data import Key, Looked, Member, Operation, RouterPod, State, Withdrawal
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.withdrawal import judge_views, missing_baseline
from operator_glue.routers.asking import RouterAt
from operator_glue.routers.picker import ask_pickers

NAMESPACE = "drainagent-picker"
LABELS = {"app": "engine", names.SERVING_LABEL: names.SERVING}
SUMMARY: list[str] = []


def tell(case: str, what: object) -> None:
    SUMMARY.append(f"stand-in of llm-d's picker: {case:44} {what}")


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    kubectl = Kubectl.of_cluster(NAMESPACE)
    kubectl.delete_namespace()
    kubectl.create_namespace()
    yield kubectl
    kubectl.delete_namespace(wait=False)
    print("\n".join(["", *SUMMARY]))


class Case:
    """Engines' Pods, pickers in front of them, and one of the Pods being withdrawn."""

    def __init__(self, kubectl: Kubectl, kubeconfig: Path | None = None) -> None:
        self.kubectl = kubectl
        self.kubeconfig = kubeconfig or kubectl.kubeconfig
        self.pickers: dict[str, PickerStandin] = {}
        self.token = "token"
        self.terminating: set[str] = set()
        for name in ("eng-0", "eng-1", "eng-2"):
            self.engine(name)
        self.target = Member("t", "eng-1", "1", 0, True, False, False, False, True, 0, "f", ("10.0.0.1",), 30)
        now = time.time()
        self.operation = Operation(
            Key("serve", 1), 1, 1, ("t",), None, State.ADMITTED, Reason.ADMITTED, "", now, now + 300, now
        )

    def engine(self, name: str) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": LABELS},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
        }
        self.kubectl.apply(pod)
        self.ready(name, "True")

    def ready(self, name: str, status: str) -> None:
        condition = f'{{"status":{{"conditions":[{{"type":"Ready","status":"{status}"}}]}}}}'
        self.kubectl.run("patch", f"pod/{name}", "--subresource=status", "--type=merge", "-p", condition)

    def picker(self, uid: str = "p", **how: object) -> PickerStandin:
        self.pickers[uid] = PickerStandin(self.kubeconfig, NAMESPACE, LABELS, **how)  # type: ignore[arg-type]
        return self.pickers[uid]

    def close(self) -> None:
        for picker in self.pickers.values():
            picker.close()
        self.kubectl.run("delete", "pods", "--all", "--force", "--grace-period=0", timeout=60)

    def look(self) -> tuple[Looked, float]:
        at = [RouterAt(uid, "127.0.0.1", picker.port) for uid, picker in self.pickers.items()]
        views = asyncio.run(ask_pickers(at, self.token, POOL, time.time))
        pods = tuple(
            RouterPod(uid, f"picker-{uid}", uid in self.terminating, uid, picker.started_at)
            for uid, picker in self.pickers.items()
        )
        return Looked(pods, views, serving_names=frozenset({"eng-0", "eng-1", "eng-2"})), time.time()

    def judge(self) -> Withdrawal:
        looked, now = self.look()
        found = judge_views(RouterName.LLM_D_ROUTER, self.operation, [self.target], looked, now)
        self.operation = replace(self.operation, routers=found.baselines)
        return found

    def baseline(self) -> None:
        """Admitted: until each picker is seen to list the target, and has been up for its first 5.1 s."""

        def has() -> bool:
            self.judge()
            looked, now = self.look()
            lacking = missing_baseline(RouterName.LLM_D_ROUTER, self.operation, [self.target], looked, now)
            settled = all(picker.bare or picker.ready is not None for picker in self.pickers.values())
            return lacking is None and settled

        until(has)

    def withdraw(self) -> None:
        self.kubectl.run("label", "pod/eng-1", f"{names.SERVING_LABEL}-")
        self.operation = replace(self.operation, withdrawn_at=time.time(), state=State.WITHDRAWING)

    def prove(self, within_s: float = 30) -> tuple[float, list[Reason]]:
        """How long it took, and what held it meanwhile."""
        began = time.monotonic()
        held: list[Reason] = []
        while True:
            found = self.judge()
            if found.proven:
                return time.monotonic() - began, list(dict.fromkeys(held))
            held.append(found.reason)
            assert time.monotonic() - began < within_s, (found.reason, found.message)
            time.sleep(0.25)


def until(holds: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def case(kubectl: Kubectl) -> Iterator[Case]:
    with closing(Case(kubectl)) as found:
        yield found


def test_a_withdrawal_and_no_pick_after_it(case: Case) -> None:
    picker = case.picker()
    case.baseline()
    picks: list[tuple[float, str | None]] = []
    over = threading.Event()

    def gateway() -> None:
        while not over.is_set():
            picks.append((time.time(), picker.pick()))
            time.sleep(0.002)

    client = threading.Thread(target=gateway)
    client.start()
    time.sleep(1)
    case.withdraw()
    took_s, _ = case.prove()
    proven_at = time.time()
    time.sleep(1.5)
    over.set()
    client.join()
    late = [name for at, name in picks if at > proven_at and name == "eng-1"]
    before = [name for at, name in picks if at <= proven_at and name == "eng-1"]
    assert before, "nothing was picked while it was listed: this shows nothing"
    assert not late
    assert not [name for _, name in picks if name is None]
    tell("label removed", f"proven after {took_s:.1f} s; {len(picks)} picks, {len(late)} of the target after that")


def test_a_dispatch_between_two_looks_begins_anew(case: Case) -> None:
    picker = case.picker()
    case.baseline()
    case.withdraw()
    until(lambda: "eng-1" not in picker.view)
    assert case.judge().reason is Reason.WAITING_FOR_ROUTERS
    picker.attempts["eng-1"] = picker.attempts.get("eng-1", 0) + 1  # as under flowControl: late by up to 65 ms
    time.sleep(1.1)
    assert case.judge().reason is Reason.RECENT_DISPATCH
    case.prove()


def test_a_picker_that_began_after_the_label_went(case: Case) -> None:
    case.picker()
    case.baseline()
    case.withdraw()
    case.pickers.pop("p").close()
    case.picker("q")
    took_s, held = case.prove()
    assert Reason.ROUTER_NOT_SYNCED in held
    assert took_s > 6
    tell("restarted meanwhile", f"proven after {took_s:.1f} s; held as {', '.join(one.word for one in held)}")


def test_first_seen_absence_proves_nothing(case: Case) -> None:
    case.picker()
    time.sleep(0.5)
    case.withdraw()
    until(lambda: "eng-1" not in case.pickers["p"].view)
    time.sleep(6)  # its number of ready endpoints is there
    assert {case.judge().reason for _ in range(3)} == {Reason.ROUTER_NEVER_LISTED}


def test_an_api_server_that_is_away_keeps_it_listed(kubectl: Kubectl, tmp_path: Path) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(cutting_proxy(kubectl))
        case = stack.enter_context(closing(Case(kubectl, through(kubectl, proxy.port, tmp_path))))
        case.picker()
        case.baseline()
        proxy.bytes_left = 0
        case.withdraw()  # by another way than the picker's
        for _ in range(4):
            assert case.judge().reason is Reason.ROUTER_LISTS_TARGET
            time.sleep(0.5)
        proxy.bytes_left = None
        took_s, held = case.prove()
        assert Reason.ROUTER_LISTS_TARGET in held
        tell("API server away for the picker", f"held while away, proven {took_s:.1f} s after it was back")


def test_several_pickers_have_to_agree(case: Case) -> None:
    case.picker("p")
    standby = case.picker("standby", leads=False)
    case.baseline()
    case.withdraw()
    standby.refuses = 404
    time.sleep(1.2)
    assert case.judge().reason is Reason.ROUTER_UNREADABLE
    standby.refuses = 0
    standby.view["eng-1"] = "t"  # stale, and a standby still answers picks
    assert case.judge().reason is Reason.ROUTER_LISTS_TARGET
    del standby.view["eng-1"]
    port, standby.port = standby.port, 1
    assert case.judge().reason is Reason.ROUTER_UNREACHABLE
    standby.port = port
    case.prove()


def test_one_that_got_sigterm_picks_on_from_a_frozen_list(case: Case) -> None:
    case.picker("p")
    ending = case.picker("ending")
    case.baseline()
    ending.frozen = True
    case.withdraw()
    time.sleep(1.5)
    case.terminating.add("ending")
    assert case.judge().reason is Reason.ROUTER_TERMINATING
    assert "eng-1" in ending.view  # it would still be picked
    case.pickers.pop("ending").close()
    took_s, _ = case.prove()
    tell("one terminating", f"held until it was gone, proven {took_s:.1f} s later")


def test_a_standby_without_a_list(case: Case) -> None:
    case.picker("p")
    case.picker("standby", leads=False, bare=True)
    case.baseline()
    case.withdraw()
    took_s, held = case.prove()
    assert took_s > 5
    tell("a standby that shows no list", f"proven after {took_s:.1f} s; held as {', '.join(one.word for one in held)}")


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_page_that_is_refused(case: Case, status: int) -> None:
    picker = case.picker()
    picker.refuses = status
    assert case.judge().reason is Reason.ROUTER_REFUSED


def test_readiness_and_deletion_take_it_out_too(case: Case) -> None:
    picker = case.picker()
    until(lambda: len(picker.view) == 3)
    case.ready("eng-0", "False")
    until(lambda: "eng-0" not in picker.view)
    case.kubectl.run("delete", "pod/eng-2", "--force", "--grace-period=0")
    until(lambda: set(picker.view) == {"eng-1"})


def test_a_member_replaced_under_its_name_is_never_seen_absent(case: Case) -> None:
    picker = case.picker()
    case.baseline()
    first = picker.view["eng-1"]
    case.kubectl.run("delete", "pod/eng-1", "--force", "--grace-period=0")
    case.engine("eng-1")
    until(lambda: picker.view.get("eng-1", first) != first)
    case.operation = replace(case.operation, withdrawn_at=time.time())
    time.sleep(1.2)
    assert case.judge().reason is Reason.ROUTER_LISTS_TARGET
