"""``drainagent check`` as a user, a script and the retirement read meet it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from misbehaving import BUSY, HTML, IDLE, Behaviour, Listener, Peer, answer, closed_port, cut, http, say, serve, silent
from test_envelope import FIELDS

from drainagent import __version__
from drainagent.catalogue import SGLANG, VLLM
from drainagent.check import check_command

CHECK = (sys.executable, "-I", "-m", "drainagent", "check")
END = ',"end":"drainagent.io/end"}\n'
#: A process starts in some 0.3 s; this is what a busy machine may need.
PATIENCE_S = 30


def check(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The real process, with no environment at all."""
    return subprocess.run(
        [*CHECK, *arguments], env={}, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def check_here(*arguments: str) -> tuple[int, str]:
    """The same in this process: exit status and stdout."""
    result = CliRunner().invoke(check_command, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def of(listener: Listener, *more: str) -> list[str]:
    return ["--engine", "vllm", "--url", str(listener.url), *more]


def envelope_of(text: str) -> dict[str, Any]:
    """The envelope, held to what whoever reads it relies on."""
    assert text.endswith(END)
    assert text.count("\n") == 1
    assert len(text.encode()) <= 64 * 1024
    document: dict[str, Any] = json.loads(text)
    assert list(document) == FIELDS
    assert document["schema"] == "drainagent.io/check/v1"
    assert document["agentVersion"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", document["sampledAt"])
    age = datetime.now(timezone.utc) - datetime.fromisoformat(document["sampledAt"].replace("Z", "+00:00"))
    assert timedelta(seconds=-1) < age < timedelta(seconds=PATIENCE_S)
    return document


def pages(*bodies: bytes) -> Behaviour:
    """A page a request, the last one for good."""
    left = list(bodies)

    def next_page(peer: Peer) -> None:
        say(http(left.pop(0) if len(left) > 1 else left[0]))(peer)

    return serve(next_page)


# Exit statuses.


def test_idle_is_0(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit(9)")
    with Listener(answer(IDLE)) as listener:
        done = check(*of(listener), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"read: {listener.url}",
        "  vllm:num_requests_running  0  (one series)",
        "  vllm:num_requests_waiting  0  (one series)",
        "in flight: 0 connections",
        "idle: Every gauge is zero and nothing is in flight.",
    ]


def test_busy_is_1() -> None:
    with Listener(answer(BUSY)) as listener:
        done = check(*of(listener))
    assert (done.returncode, done.stderr) == (1, "")
    assert "  vllm:num_requests_running  3  (one series)\n" in done.stdout
    assert done.stdout.endswith("busy (GaugesAboveZero): vllm:num_requests_running is 3.\n")


def test_lingering_connection_on_vllm_is_busy_and_names_its_peer() -> None:
    with Listener(answer(IDLE)) as listener, listener.connect() as client:
        done = check(*of(listener))
        peer = f"127.0.0.1:{client.getsockname()[1]}"
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith(f"busy (ConnectionsOpen): 1 client connection open (peers {peer}).\n")


def test_wrong_usage_is_2() -> None:
    done = check("--url", "http://192.0.2.99:8000/metrics", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "192.0.2.99 is no address of this Pod" in done.stderr


def test_unmeasurable_is_3() -> None:
    url = f"http://127.0.0.1:{closed_port()}/metrics"
    done = check("--url", url)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines()[-1] == f"unmeasurable (ConnectionRefused): nothing listens at {url}."


def test_unknown_is_3() -> None:
    with Listener(cut(http(IDLE)[:-10])) as listener:
        done = check(*of(listener))
    assert (done.returncode, done.stderr) == (3, "")
    assert "\nunknown (PageCut): " in done.stdout


def test_silent_listener_is_3_within_its_bound() -> None:
    with Listener(silent) as listener:
        began_s = time.monotonic()
        done = check(*of(listener, "--json"))
        took_s = time.monotonic() - began_s
    assert done.returncode == 3
    assert envelope_of(done.stdout)["reason"] == "TimedOut"
    assert 2 <= took_s < 10


# --confirm, --wait, --watch.


def test_confirm_reads_twice_a_second_apart() -> None:
    times_s: list[float] = []

    def noted(peer: Peer) -> None:
        times_s.append(time.monotonic())
        say(http(IDLE))(peer)

    with Listener(serve(noted)) as listener:
        done = check(*of(listener, "--confirm"))
    assert (done.returncode, len(times_s)) == (0, 2)
    assert times_s[1] - times_s[0] >= 0.99
    assert done.stdout.count("idle: ") == 1


@pytest.mark.parametrize(("bodies", "reads"), [((IDLE, BUSY, IDLE), 2), ((BUSY, IDLE), 1)])
def test_confirm_is_idle_only_when_both_reads_are(bodies: Sequence[bytes], reads: int) -> None:
    with Listener(pages(*bodies)) as listener:
        assert check(*of(listener, "--confirm")).returncode == 1
    assert len(listener.requests) == reads


def test_wait_until_idle() -> None:
    with Listener(pages(BUSY, IDLE)) as listener:
        began_s = time.monotonic()
        done = check(*of(listener, "--wait", "60"))
        took_s = time.monotonic() - began_s
    assert (done.returncode, len(listener.requests)) == (0, 3)
    assert 2 <= took_s < 20
    assert done.stdout.count("idle: ") == 1


def test_wait_ends() -> None:
    with Listener(answer(BUSY)) as listener:
        began_s = time.monotonic()
        done = check(*of(listener, "--wait", "1.5", "--json"))
        assert time.monotonic() - began_s < 20
    assert (done.returncode, len(listener.requests)) == (1, 2)
    assert envelope_of(done.stdout)["verdict"] == "busy"


def test_wait_does_not_take_one_idle_read_for_two() -> None:
    with Listener(answer(IDLE)) as listener:
        status, text = check_here(*of(listener, "--wait", "0", "--json"))
    assert status == 1
    assert envelope_of(text)["verdict"] == "busy"


@pytest.mark.parametrize("as_json", [False, True])
def test_watch_goes_on_until_it_is_stopped(as_json: bool) -> None:
    """Idle reads do not end it."""
    with Listener(pages(BUSY, IDLE)) as listener:
        # As from a terminal, also where this suite runs in the background, with SIGINT ignored.
        code = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, *CHECK, *of(listener, "--watch", *["--json"] * as_json)]
        with subprocess.Popen(command, env={}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            lines = [watch.stdout.readline() for _ in range(3)]
            watch.send_signal(signal.SIGINT)
            rest, complaints = watch.communicate(timeout=PATIENCE_S)
    assert (watch.returncode, complaints) == (0, "")
    assert rest.count("\n") <= 1
    if as_json:
        assert [envelope_of(line)["verdict"] for line in lines] == ["busy", "idle", "idle"]
        return
    form = (
        r"\S+Z (busy GaugesAboveZero|idle)  vllm:num_requests_running=(\d) vllm:num_requests_waiting=0  0 connections\n"
    )
    found = [re.fullmatch(form, line) for line in lines]
    assert [match.group(2) for match in found if match] == ["3", "0", "0"]


# --json.


def test_envelope_of_an_idle_vllm() -> None:
    with Listener(answer(IDLE)) as listener:
        done = check(*of(listener, "--json"))
    document = envelope_of(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    digests = [gauge.pop("seriesDigest") for gauge in document["gauges"]]
    assert digests[0] == digests[1]
    assert {name: document[name] for name in FIELDS if name not in {"schema", "agentVersion", "sampledAt", "end"}} == {
        "engine": "vLLM",
        "url": str(listener.url),
        "processStartTime": 1.7e9,
        "verdict": "idle",
        "reason": None,
        "message": "Every gauge is zero and nothing is in flight.",
        "complete": True,
        "engines": {"expected": None, "shown": 1},
        "gauges": [
            {"name": "vllm:num_requests_running", "sum": 0, "series": 1},
            {"name": "vllm:num_requests_waiting", "sum": 0, "series": 1},
        ],
        "missing": [],
        "inFlight": {"connections": 0, "unackedBytes": 0, "unreadBytes": 0, "counter": None},
    }


def test_envelope_of_a_busy_sglang() -> None:
    page = (
        b"".join(
            b'%s{dp_rank="%d"} %d.0\n' % (name.encode(), rank, rank) for name in SGLANG.expected for rank in range(3)
        )
        + b'sglang:http_requests_active{endpoint="/generate",method="POST"} 2.0\n'
    )
    with Listener(answer(page)) as listener, listener.connect():
        status, text = check_here("--url", str(listener.url), "--json")
    document = envelope_of(text)
    assert (status, document["verdict"], document["reason"]) == (1, "busy", "GaugesAboveZero")
    assert (document["engine"], document["engines"]) == ("SGLang", {"expected": None, "shown": 3})
    assert [(gauge["name"], gauge["sum"], gauge["series"]) for gauge in document["gauges"]] == [
        (name, 3, 3) for name in SGLANG.expected
    ]
    assert document["inFlight"] == {
        "connections": 1,
        "unackedBytes": 0,
        "unreadBytes": 0,
        "counter": {"source": "httpRequestsActive", "value": 2},
    }


def test_envelope_says_what_is_missing() -> None:
    with Listener(answer(b"vllm:num_requests_waiting 0\n")) as listener:
        status, text = check_here(*of(listener, "--json"))
    document = envelope_of(text)
    assert (status, document["verdict"], document["complete"]) == (0, "idle", False)
    assert (document["missing"], document["processStartTime"]) == (["vllm:num_requests_running"], None)


def test_envelope_without_a_page() -> None:
    status, text = check_here("--url", f"http://127.0.0.1:{closed_port()}/", "--json")
    document = envelope_of(text)
    assert (status, document["verdict"], document["reason"]) == (3, "unmeasurable", "ConnectionRefused")
    assert (document["engine"], document["engines"], document["gauges"], document["complete"]) == (
        None,
        None,
        [],
        False,
    )


def test_json_page_bound_is_a_mebibyte() -> None:
    """The retirement read's; people may look at larger pages."""
    filler = b"# filler\n" * (2**20 // 9 + 1)
    with Listener(answer(IDLE + filler)) as listener:
        status, text = check_here(*of(listener, "--json"))
        assert (status, envelope_of(text)["reason"]) == (3, "PageTooLarge")
        assert check_here(*of(listener))[0] == 0


@pytest.mark.parametrize(
    "said",
    [
        http(b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % i for i in range(20_000))),
        http(b'vllm:num_requests_running{engine="%s"} x\n' % (b"\x01" * 500_000)),
        http(b'vllm:num_requests_running{engine="%s"} 1\n' % ("\U0001f600" * 100_000).encode()),
        http(b"vllm:num_requests_running 1e308\nvllm:num_requests_running 1e308\n"),
        http(b"f" * 60_000 + b"\r\n", "Transfer-Encoding: chunked", length=None),
        http(b"", "Content-Encoding: " + "\x7fx" * 30_000),
    ],
    ids=["series", "sample", "label", "sum", "chunk", "encoding"],
)
def test_envelope_is_bounded_and_well_formed_whatever_is_said(said: bytes) -> None:
    with Listener(cut(said)) as listener:
        status, text = check_here(*of(listener, "--json"))
        assert status in {1, 3}
        envelope_of(text)
        assert len(check_here(*of(listener))[1]) < 8192


# Options.


def test_gauges_only() -> None:
    with Listener(answer(IDLE)) as listener, listener.connect():
        assert check_here(*of(listener))[0] == 1
        status, text = check_here(*of(listener, "--gauges-only", "--json"))
    document = envelope_of(text)
    assert (status, document["verdict"]) == (0, "idle")
    assert set(document["inFlight"].values()) == {None}
    for body, reason in ((b"up 1\n", "AllGaugesMissing"), (HTML, "NotAMetricsPage")):
        with Listener(answer(body)) as listener:
            status, text = check_here(*of(listener, "--gauges-only", "--json"))
        assert (status, envelope_of(text)["reason"]) == (3, reason)


def test_ignored_peer() -> None:
    with Listener(answer(IDLE), host="::") as listener, listener.connect(source=("127.0.0.9", 0)):
        for ignored, status in (("127.0.0.9", 0), ("127.0.0.8/31", 0), ("::ffff:127.0.0.9", 0), ("10.0.0.0/8", 1)):
            assert check_here(*of(listener, "--ignore-peer", ignored))[0] == status
        assert check_here(*of(listener, "--ignore-peer", "10.0.0.0/8", "--ignore-peer", "127.0.0.9"))[0] == 0


def test_several_urls() -> None:
    with Listener(answer(IDLE)) as one, Listener(answer(BUSY)) as other:
        assert check_here(*of(one), "--url", f"http://127.0.0.1:{closed_port()}")[0] == 0
        status, text = check_here(*of(one, "--json"), "--url", str(other.url))
    document = envelope_of(text)
    assert (status, document["verdict"], document["url"]) == (1, "busy", str(other.url))
    assert [gauge["sum"] for gauge in document["gauges"]] == [3, 0]


def test_load_tracking_lets_a_connection_linger() -> None:
    """Six reads a second apart: the one test here that takes the time."""
    with Listener(serve(say(http(IDLE)), {"/load": say(http(b'{"server_load": 0}'))})) as listener, listener.connect():
        done = check(*of(listener, "--load-tracking", "--api-servers", "1", "--wait", "20", "--json"))
        document = envelope_of(done.stdout)
        assert (done.returncode, document["verdict"]) == (0, "idle")
        assert document["inFlight"]["connections"] == 1
        assert document["inFlight"]["counter"] == {"source": "load", "value": 0}
        assert sum("/load" in request for request in listener.requests) == 7
        assert check_here(*of(listener, "--no-load-tracking", "--wait", "0"))[0] == 1
        assert check_here(*of(listener, "--load-tracking", "--api-servers", "2", "--wait", "0"))[0] == 1
        assert sum("/load" in request for request in listener.requests) == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "tgi"], ["--engine", "'tgi'", "vllm or sglang"]),
        (["--url", "127.0.0.1:8000"], ["--url", "'127.0.0.1:8000'", "http:// or https://"]),
        (["--url", "http://127.0.0.1:0/"], ["--url", "'http://127.0.0.1:0/'", "1 to 65535"]),
        (["--url", "http://127.0.0.1:99999/"], ["--url", "'http://127.0.0.1:99999/'", "65535"]),
        (
            ["--url", "http://engine:8000/"],
            ["--url", "'http://engine:8000/'", "localhost or an IP address of this Pod"],
        ),
        (["--url", "http://8.8.8.8/"], ["--url", "'http://8.8.8.8/'", "8.8.8.8 is no address of this Pod"]),
        (["--url", "http://me:secret@127.0.0.1/"], ["--url", "no user name or password"]),
        (["--url", "http://127.0.0.1/ä"], ["--url", "printable ASCII"]),
        (["--url", "http://127.0.0.1/" + "x" * 3000], ["--url", "2048 characters"]),
        (["--wait", "soon"], ["--wait", "'soon'", "0 to 3600"]),
        (["--wait", "nan"], ["--wait", "'nan'", "0 to 3600"]),
        (["--wait", "-1"], ["--wait", "'-1'", "0 to 3600"]),
        (["--wait", "3601"], ["--wait", "'3601'", "0 to 3600"]),
        (["--api-servers", "0"], ["--api-servers", "'0'", "1 to 1024"]),
        (["--api-servers", "9" * 5000], ["--api-servers", "1 to 1024"]),
        (["--ignore-peer", "scraper"], ["--ignore-peer", "'scraper'", "CIDR such as 10.0.0.0/8"]),
        (["--ignore-peer", "10.0.0.0/33"], ["--ignore-peer", "'10.0.0.0/33'"]),
        (["--confirm", "--watch"], ["--confirm, --watch and --wait exclude each other"]),
        (["--watch", "--wait", "3"], ["--confirm, --watch and --wait exclude each other"]),
        (["--wait"], ["'--wait' requires an argument"]),
        (["--until"], ["--until"]),
        (["now"], ["now"]),
    ],
)
def test_wrong_usage_says_field_value_and_bound(arguments: Sequence[str], says: Sequence[str]) -> None:
    result = CliRunner().invoke(check_command, ["--json", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    sentence = result.stderr.rstrip("\n").splitlines()[-1]
    assert sentence.startswith("Error: ")
    assert len(sentence) < 600
    for part in says:
        assert part in sentence


# Discovery.


def test_an_engine_is_found_by_its_command_line(tmp_path: Path) -> None:
    """Other engines may run on this machine, so only what is said of ours is looked at."""
    script = tmp_path / "vllm"
    script.write_text("import sys; print(flush=True); sys.stdin.read()")
    with Listener(answer(BUSY)) as listener:
        serving = [sys.executable, str(script), "serve", "model", "--port", str(listener.port), "-dp=2"]
        with subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
            assert engine.stdout is not None
            engine.stdout.readline()
            found = check("--engine", "vllm")
            named = check("--url", str(listener.url), "--json")
            engine.communicate()
    assert found.returncode == 1
    assert f"found: process {engine.pid} is vLLM, listening on port {listener.port}\n" in found.stdout
    document = envelope_of(named.stdout)
    assert (document["engine"], document["engines"]) == (VLLM.name, {"expected": 2, "shown": 1})


def test_nothing_is_found() -> None:
    """In a network and a /proc of its own, where no engine runs and the usual ports are free."""
    alone = ["unshare", "--net", "--pid", "--fork", "--mount-proc", *["--map-root-user"] * (os.geteuid() != 0)]
    try:
        subprocess.run([*alone, "true"], capture_output=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespace can be made here")
    command = [*alone, *CHECK, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    document = envelope_of(done.stdout)
    assert (done.returncode, document["verdict"], document["reason"]) == (3, "unmeasurable", "NoListener")
    assert document["url"] == ""


def test_closed_output_is_no_traceback() -> None:
    """``drainagent check | head -0``"""
    reading, writing = os.pipe()
    os.close(reading)
    with Listener(answer(IDLE)) as listener, os.fdopen(writing, "wb") as stdout:
        done = subprocess.run(
            [*CHECK, *of(listener, "--json")], stdout=stdout, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False
        )
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr


def test_any_local_address_may_be_asked() -> None:
    for host in ("127.0.0.1", "::1", "127.0.0.77"):
        with Listener(answer(IDLE), host=host) as listener:
            assert check_here(*of(listener))[0] == 0
    with Listener(answer(IDLE), host="::1") as listener:
        assert check_here("--url", f"http://localhost:{listener.port}")[0] == 0


def test_check_serves_a_machine_without_ipv6_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tcp6 is no IPv6; no table at all is not "nobody is connected"."""
    from drainagent import procfs

    with Listener(answer(IDLE)) as listener, socket.create_connection((listener.host, listener.port)):
        monkeypatch.setattr(procfs, "read_tables", lambda: None)
        status, text = check_here(*of(listener, "--json"))
    document = envelope_of(text)
    assert (status, document["verdict"], document["reason"]) == (3, "unknown", "InFlightUnreadable")
    assert document["inFlight"]["connections"] is None
