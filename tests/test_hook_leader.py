"""The real hook process of a follower: it watches its leader's listener."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import struct
import threading
from dataclasses import dataclass

import pytest
from hookproc import (
    BUSY,
    GRACE_S,
    IDLE,
    Behaviour,
    Case,
    Lab,
    alone_on_the_network,
    answer,
    closed_port,
    concurrent,
    drip,
    in_mounts,
    pages,
    server_tls,
    silent,
    started_cases,  # noqa: F401 - the fixture behind ``concurrent``
    status,
)

from drainagent.timeline import LEADER_READ_PLACES_S

PLACES_S = LEADER_READ_PLACES_S
#: Room for three reads of 2 s each after one that was answered: no read from 15 on, gone by 17.
LONG_S = 20


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One a read, the last one for good."""
    return lambda connection, number: behaviours[min(number, len(behaviours) - 1)](connection, number)


def reset(connection: socket.socket, _: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# ---------------------------------------------------------------------------------------------------------------------
# By address


@concurrent
def test_a_leader_that_refuses_at_first_means_the_settle_only(lab: Lab) -> Case:
    run = lab.hook("--engine", "vllm", "--leader", f"http://127.0.0.1:{closed_port()}/metrics")
    yield
    end = run.end()
    run.took(5.5)
    assert (end.status, end.outcome) == (0, "unmeasurable")
    assert "never answered: the settle only" in end.cause


@concurrent
@pytest.mark.parametrize("page", [BUSY, IDLE], ids=["busy", "idle"])
@pytest.mark.parametrize("https", [False, True], ids=["http", "https"])
def test_a_leader_that_is_gone_ends_it_and_an_idle_one_does_not(lab: Lab, page: bytes, https: bool) -> Case:
    leader = lab.listener(pages(page), tls=server_tls() if https else None)
    run = lab.hook("--engine", "vllm", "--leader", leader.url)
    run.call_at(8.1, leader.close)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=3)
    run.took(8.5)
    assert (end.status, end.outcome) == (0, "idle")
    assert "the leader's listener is gone" in end.cause


def half(connection: socket.socket, _: int) -> None:
    connection.sendall(answer(IDLE)[:-9])
    connection.shutdown(socket.SHUT_WR)


ANSWERS: dict[str, Behaviour] = {
    "idle": pages(IDLE),
    "404": status("404 Not Found"),
    "503": status("503 Service Unavailable"),
    "garbage": lambda connection, _: connection.sendall(b"\x15\x03\x01\x00\x02\x02\x46"),
    "half": half,
    "reset": reset,
    "html": pages(b"<html></html>"),
}


@concurrent
@pytest.mark.parametrize("what", ANSWERS)
def test_a_leader_that_still_says_anything_is_waited_for_to_the_deadline(lab: Lab, what: str) -> Case:
    leader = lab.listener(ANSWERS[what])
    run = lab.hook("--engine", "vllm", "--leader", leader.url)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=5)
    run.took(GRACE_S - 5)
    assert (end.status, end.outcome) == (0, "deadline")
    assert "still answers" in end.cause


@concurrent
def test_a_leader_silent_on_three_reads_in_a_row_after_it_answered_is_gone(lab: Lab) -> Case:
    leader = lab.listener(in_turn(pages(BUSY), silent))
    run = lab.hook("--leader", leader.url, grace=str(LONG_S))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=LONG_S)
    assert len(leader.visits) == 4
    assert (end.status, end.outcome) == (0, "idle")
    assert "3 reads in a row" in end.cause


@concurrent
def test_a_leader_whose_answers_begin_and_never_end_is_not_gone(lab: Lab) -> Case:
    """Somebody is there who speaks HTTP: a page that is slow is no proof of the contrary."""
    leader = lab.listener(in_turn(pages(BUSY), drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n# HELP x", 0.01)))
    run = lab.hook("--leader", leader.url, grace=str(LONG_S))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=LONG_S)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_two_silent_reads_and_an_answer_do_not_make_a_leader_gone(lab: Lab) -> Case:
    leader = lab.listener(in_turn(pages(BUSY), silent, silent, pages(BUSY), silent))
    run = lab.hook("--leader", leader.url, grace=str(LONG_S))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=LONG_S)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_a_leader_that_was_always_silent_means_the_settle_and_three_reads(lab: Lab) -> Case:
    leader = lab.listener(silent)
    run = lab.hook("--leader", leader.url, grace=str(LONG_S))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=LONG_S)
    assert len(leader.visits) == 3
    assert (end.status, end.outcome) == (0, "unmeasurable")
    assert "never answered: the settle only" in end.cause


@concurrent
def test_a_silent_leader_at_the_deadline_is_not_said_to_answer(lab: Lab) -> Case:
    leader = lab.listener(silent)
    run = lab.hook("--leader", leader.url)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S)
    run.took(GRACE_S - 5, late_s=2)
    assert end.status == 0
    assert "still answers" not in end.cause


@concurrent
def test_its_own_listener_is_not_read(lab: Lab) -> Case:
    own, leader = lab.listener(pages(IDLE)), lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", own.url, "--leader", leader.url)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=5)
    assert own.visits == []
    assert (end.status, end.outcome) == (0, "deadline")


# ---------------------------------------------------------------------------------------------------------------------
# By name

_ADDRESSES = itertools.count(1)


class Resolver:
    """A name server of ours on a loopback address; ``names`` may change while it runs. None: no answer at all."""

    def __init__(self, names: dict[str, list[str]] | None) -> None:
        self.names = names
        self.asked = 0
        self.address = f"127.77.53.{next(_ADDRESSES)}"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((self.address, 53))
        except OSError as error:
            self._socket.close()
            pytest.skip(f"no name server can be had here: {error}")
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                query, peer = self._socket.recvfrom(4096)
                if not query:
                    return
                self.asked += 1
                if self.names is not None:
                    self._socket.sendto(self._answer(query, self.names), peer)

    @staticmethod
    def _answer(query: bytes, names: dict[str, list[str]]) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12 : at + 5]
        found = names.get(".".join(labels))
        addresses = found or [] if question[-4:-2] == b"\0\x01" else []
        head = query[:2] + struct.pack(">HHHHH", 0x8183 if found is None else 0x8180, 1, len(addresses), 0, 0)
        records = (b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(one) for one in addresses)
        return head + question + b"".join(records)


def asking(lab: Lab, resolver: Resolver) -> list[str]:
    """Words that start a hook which asks this resolver."""
    lab.on_close(resolver.close)
    folder = lab.new_folder()
    (folder / "resolv.conf").write_text(f"nameserver {resolver.address}\noptions timeout:30 attempts:5\n")
    (folder / "nsswitch.conf").write_text("hosts: files dns\n")
    binds = (f"mount --bind '{folder / name}' /etc/{name}" for name in ("resolv.conf", "nsswitch.conf"))
    return in_mounts("\n".join(binds))


LEADER = "replica-0.headless.default.svc"


@concurrent
def test_a_leader_by_name(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    resolver = Resolver({LEADER: ["127.0.0.1"]})
    run = lab.hook("--leader", f"http://{LEADER}:{leader.port}/metrics", through=asking(lab, resolver))
    run.call_at(8.1, leader.close)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=3)
    assert (end.status, end.outcome) == (0, "idle")
    assert "the leader's listener is gone" in end.cause


@concurrent
def test_a_name_with_several_addresses_answers_when_one_does(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    resolver = Resolver({LEADER: ["127.99.99.99", "127.0.0.1"]})
    run = lab.hook("--leader", f"http://{LEADER}:{leader.port}/metrics", through=asking(lab, resolver))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_localhost_is_a_name_too(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    run = lab.hook("--leader", f"http://localhost:{leader.port}/metrics")
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_a_name_that_does_not_resolve_means_the_settle_and_three_reads(lab: Lab) -> Case:
    run = lab.hook("--leader", f"http://{LEADER}:8000/metrics", through=asking(lab, Resolver({})))
    yield
    end = run.end()
    run.took(7.75)
    assert (end.status, end.outcome) == (0, "unmeasurable")
    assert len(end.reads) <= 3
    assert "never answered: the settle only" in end.cause
    assert "does not resolve" in end.cause


@concurrent
def test_a_resolver_that_hangs_means_the_settle_and_three_reads(lab: Lab) -> Case:
    resolver = Resolver(None)
    run = lab.hook("--leader", f"http://{LEADER}:8000/metrics", through=asking(lab, resolver), grace=str(LONG_S))
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "unmeasurable")
    assert 13 <= end.took_s <= 14 + run.lag_s
    assert "never answered: the settle only" in end.cause
    assert resolver.asked >= 1


@concurrent
def test_a_resolver_that_hangs_at_the_deadline(lab: Lab) -> Case:
    run = lab.hook("--leader", f"http://{LEADER}:8000/metrics", through=asking(lab, Resolver(None)))
    yield
    end = run.end()
    run.took(GRACE_S - 5, late_s=2)
    assert end.status == 0
    assert "still answers" not in end.cause


@concurrent
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
def test_a_signal_while_the_resolver_hangs(lab: Lab, number: signal.Signals) -> Case:
    run = lab.hook("--leader", f"http://{LEADER}:8000/metrics", through=asking(lab, Resolver(None)))
    run.signal_at(6.0, number)
    yield
    end = run.end()
    run.took(6)
    assert (end.status, end.outcome) == (0, "terminated")


@concurrent
def test_a_resolver_that_hangs_after_the_leader_answered(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    resolver = Resolver({LEADER: ["127.0.0.1"]})
    url = f"http://{LEADER}:{leader.port}/metrics"
    run = lab.hook("--leader", url, through=asking(lab, resolver), grace=str(LONG_S))
    run.call_at(6.0, lambda: setattr(resolver, "names", None))
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=LONG_S, reads=1)
    assert (end.status, end.outcome) == (0, "idle")
    assert "3 reads in a row" in end.cause


# ---------------------------------------------------------------------------------------------------------------------
# From the container's environment


@dataclass(frozen=True)
class Given:
    """A form of the variable's value, for a leader at ``host``; ``with_url``: the port is that of ``--url``."""

    host: str
    value: str
    with_url: bool = False

    def __str__(self) -> str:
        return self.value + ("-with-url" if self.with_url else "")


GIVEN = (
    Given("127.0.0.1", "127.0.0.1", with_url=True),
    Given("127.0.0.1", "127.0.0.1:PORT"),
    Given("127.0.0.1", "http://127.0.0.1:PORT/metrics"),
    Given("127.0.0.1", "http://127.0.0.1:PORT"),
    Given("127.0.0.1", "localhost:PORT"),
    Given("127.0.0.1", "localhost", with_url=True),
    Given("::1", "::1", with_url=True),
    Given("::1", "[::1]", with_url=True),
    Given("::1", "[::1]:PORT"),
    Given("::1", "http://[::1]:PORT/metrics"),
)


@concurrent
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_the_leader_in_a_variable(lab: Lab, given: Given) -> Case:
    leader = lab.listener(pages(IDLE), host=given.host)
    url = ["--url", leader.url] if given.with_url else []
    env = {"LWS_LEADER_ADDRESS": given.value.replace("PORT", str(leader.port))}
    run = lab.hook("--engine", "vllm", "--leader-env", "LWS_LEADER_ADDRESS", *url, env=env)
    run.call_at(6.5, leader.close)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, reads=2)
    assert (end.status, end.outcome) == (0, "idle"), end.text
    assert "the leader's listener is gone" in end.cause


@concurrent
@pytest.mark.parametrize(("engine", "port"), [("vllm", 8000), ("sglang", 30000)])
def test_an_address_alone_means_the_engines_own_port(lab: Lab, engine: str, port: int) -> Case:
    run = lab.hook(
        "--engine", engine, "--leader-env", "LEADER", env={"LEADER": "127.0.0.1"}, through=alone_on_the_network()
    )
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "unmeasurable")
    assert f"http://127.0.0.1:{port}/metrics" in end.cause


@concurrent
@pytest.mark.parametrize(
    "env", [{}, {"LEADER": ""}, {"LEADER": "two words"}, {"LEADER": "http://"}, {"LEADER": "host:99999"}], ids=str
)
def test_a_variable_that_names_no_leader_waits_to_the_deadline(lab: Lab, env: dict[str, str]) -> Case:
    own = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--url", own.url, "--leader-env", "LEADER", env=env)
    yield
    end = run.end()
    run.took(GRACE_S - 5)
    assert (end.status, end.outcome) == (2, "deadline")
    assert own.visits == []
    assert len(end.wrong) == 1
    assert "--leader-env" in end.wrong[0]
    assert "LEADER" in end.wrong[0]


@concurrent
@pytest.mark.parametrize("url", ["", "leader", "ftp://leader/", "http://leader:0/", "http://a b/", "http://u@leader/"])
def test_a_wrong_leader_waits_to_the_deadline(lab: Lab, url: str) -> Case:
    run = lab.hook("--engine", "vllm", "--leader", url)
    yield
    end = run.end()
    run.took(GRACE_S - 5)
    assert (end.status, end.outcome) == (2, "deadline")
    assert len(end.wrong) == 1
    assert "--leader" in end.wrong[0]
    assert repr(url) in end.wrong[0]


@concurrent
def test_a_wrong_leader_and_no_grace_waits_until_somebody_ends_it(lab: Lab) -> Case:
    run = lab.hook("--engine", "vllm", "--leader", "nonsense", grace=None)
    run.signal_at(12.0, signal.SIGTERM)
    yield
    end = run.end()
    run.took(12)
    assert (end.status, end.outcome) == (2, "terminated")
    assert len(end.wrong) == 2
    assert any(line["elapsed_s"] > 9 for line in end.lines[:-1]), "a line at least every 10 s"


@concurrent
def test_a_leader_and_no_grace_is_watched_until_it_is_gone(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--leader", leader.url, grace="soon")
    run.call_at(12.9, leader.close)
    yield
    end = run.end()
    run.keeps_the_timeline(leader, places_s=PLACES_S, grace_s=3600, reads=8)
    assert (end.status, end.outcome) == (2, "idle")


@concurrent
def test_a_leader_and_a_grace_without_room(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--leader", leader.url, grace="4")
    yield
    end = run.end()
    run.took(5, late_s=0.5)
    assert (end.status, end.outcome) == (2, "deadline")
    assert leader.visits == []
    assert "still answers" not in end.cause


@concurrent
def test_stopped_over_the_deadline_a_follower_is_gone_as_soon_as_it_goes_on(lab: Lab) -> Case:
    leader = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--leader", leader.url)
    run.signal_at(7.2, signal.SIGSTOP)
    run.signal_at(13.0, signal.SIGCONT)
    yield
    end = run.end()
    run.took(13)
    assert (end.status, end.outcome) == (0, "deadline")
