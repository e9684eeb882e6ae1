"""The exec edge against a server that replays a session as the API server speaks it, and breaks it everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from kubernetes_asyncio import client
from test_judging import AT, IDLE, MEMBER, answering, line

from operator_glue.kube import Kube
from operator_glue.member_read import MAX_BYTES, read_member
from operator_glue.retirement.data import MemberRead, ReadFault, Verdict
from operator_glue.retirement.judging import judge
from operator_glue.retirement.members import member_of
from operator_glue.retirement.reasons import Reason

POD = {
    "metadata": {"name": "pod", "uid": "uid", "resourceVersion": "1"},
    "spec": {"nodeName": "n"},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [
            {"name": "main", "restartCount": 0, "containerID": "c", "started": True, "state": {"running": {}}}
        ],
    },
}
CAPTURED = member_of(POD)
SUCCESS = json.dumps({"metadata": {}, "status": "Success"}).encode()


def ended(code: int) -> bytes:
    """The last word of a session whose command ended so, as Kubernetes 1.34.4 says it."""
    return json.dumps(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    ).encode()


Frames = list[tuple[int, bytes]]
Session = Callable[[web.WebSocketResponse], Any]


@asynccontextmanager
async def api_server(
    session: Session, *, pod: dict[str, Any] | None = POD, refuses: int = 0, protocols: tuple[str, ...] = ()
) -> AsyncIterator[Kube]:
    """``refuses``: the status that an exec is answered with. ``protocols``: what it speaks; unset: v5 and v4."""

    async def get(_: web.Request) -> web.Response:
        if pod is None:
            return web.json_response({"message": "pods pod not found"}, status=404)
        return web.json_response(pod)

    async def exec_(request: web.Request) -> web.StreamResponse:
        if refuses:
            return web.json_response({"kind": "Status", "message": f"refused with {refuses}"}, status=refuses)
        socket = web.WebSocketResponse(protocols=protocols or ("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        await session(socket)
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ns/pods/pod", get)
    app.router.add_get("/api/v1/namespaces/ns/pods/pod/exec", exec_)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    kube = Kube(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")))
    try:
        yield kube
    finally:
        await kube.close()
        await runner.cleanup()


def plays(frames: Frames) -> Session:
    async def session(socket: web.WebSocketResponse) -> None:
        for channel, data in frames:
            await socket.send_bytes(bytes([channel]) + data)
        await socket.close()

    return session


async def one_read(kube: Kube, whole_s: float = 5.0) -> MemberRead:
    times = iter((AT, AT + 1.0))
    return await read_member(kube, "ns", CAPTURED, ("agent", "check"), lambda: next(times), whole_s)


def read(session: Session, whole_s: float = 5.0, **server: Any) -> MemberRead:
    async def work() -> MemberRead:
        async with api_server(session, **server) as kube:
            return await one_read(kube, whole_s)

    return asyncio.run(work())


def judged(found: MemberRead) -> tuple[Verdict, Reason | None]:
    reading = judge(found, CAPTURED, answering(), None, prove_from_member=False)
    return reading.verdict, reading.reason


def fault(found: MemberRead) -> ReadFault:
    assert isinstance(found.answer, ReadFault), found.answer
    assert found.answer.detail
    return found.answer


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
@pytest.mark.parametrize("status", [SUCCESS, ended(1), ended(3)])
def test_an_envelope_is_given_back_whatever_the_exit_status_says(status: bytes, protocol: str) -> None:
    whole = line(IDLE)
    frames = [(1, b""), (2, b"a warning\n"), (1, whole[:100]), (1, whole[100:]), (3, status)]
    found = read(plays(frames), protocols=(protocol,))
    assert found.answer == whole
    assert (found.started_at, found.ended_at, found.before, found.after) == (AT, AT + 1.0, CAPTURED, CAPTURED)
    assert judged(found) == (Verdict.IDLE, Reason.IDLE_ONCE)


def test_cut_after_every_byte_it_never_reads_idle() -> None:
    """Cut with and without a last word that says Success."""
    whole = line(IDLE)

    async def work() -> list[tuple[int, bool, MemberRead]]:
        playing: list[Frames] = [[]]

        async def session(socket: web.WebSocketResponse) -> None:
            await plays(playing[0])(socket)

        found = []
        async with api_server(session) as kube:
            for end in range(len(whole)):
                for last in (True, False):
                    playing[0] = [(1, whole[:end]), *([(3, SUCCESS)] if last else [])]
                    found.append((end, last, await one_read(kube)))
        return found

    for end, last, one in asyncio.run(work()):
        assert judged(one)[0] is Verdict.HELD, (end, last, one)
        if not last:
            assert judged(one) == (Verdict.HELD, Reason.EXEC_CUT), (end, one)


def test_a_whole_envelope_without_a_last_word_is_a_cut_session() -> None:
    assert judged(read(plays([(1, line(IDLE))]))) == (Verdict.HELD, Reason.EXEC_CUT)
    assert judged(read(plays([(1, line(IDLE)), (3, b"{}"), (3, b"{")]))) == (Verdict.HELD, Reason.EXEC_CUT)


def test_a_session_that_breaks_off_is_cut() -> None:
    async def session(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + line(IDLE)[:50])
        assert socket._req is not None
        transport = socket._req.transport
        assert transport is not None
        transport.abort()

    assert fault(read(session)).reason is Reason.EXEC_CUT


@pytest.mark.parametrize("drips", [False, True])
def test_nothing_outlives_the_bound(drips: bool) -> None:
    async def session(socket: web.WebSocketResponse) -> None:
        while not socket.closed:
            if drips:
                await socket.send_bytes(b"\x01x")
            message = await socket.receive(timeout=0.02) if not drips else None
            if message is not None and message.type is WSMsgType.CLOSE:
                return
            await asyncio.sleep(0.01)

    async def bounded(socket: web.WebSocketResponse) -> None:
        try:
            await session(socket)
        except (asyncio.TimeoutError, ConnectionError):
            await asyncio.sleep(1)

    assert fault(read(bounded, 0.2)).reason is Reason.EXEC_TIMED_OUT


def test_more_than_the_bound_is_not_taken() -> None:
    frames = [(1, b"x" * 65536)] * (MAX_BYTES // 65536 + 1)
    assert fault(read(plays(frames))).reason is Reason.EXEC_TOO_LARGE


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (2, b"Usage: drainagent check [OPTIONS]\n", Reason.EXEC_FAILED),
        (2, b"python3: can't open file '/opt/drainagent': [Errno 2] No such file", Reason.AGENT_MISSING),
        (127, b"sh: drainagent: executable file not found in $PATH", Reason.AGENT_MISSING),
        (126, b"", Reason.EXEC_FAILED),
        (137, b"", Reason.EXEC_FAILED),
        (1, b"", Reason.EXEC_FAILED),
    ],
)
def test_a_command_that_gives_no_envelope(code: int, words: bytes, reason: Reason) -> None:
    assert fault(read(plays([(2, words), (3, ended(code))]))).reason is reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, Reason.EXEC_FORBIDDEN), (401, Reason.EXEC_FORBIDDEN), (404, Reason.MEMBER_GONE), (500, Reason.EXEC_FAILED)],
)
def test_a_refused_exec_says_so_in_the_servers_words(status: int, reason: Reason) -> None:
    found = fault(read(plays([]), refuses=status))
    assert found.reason is reason
    assert f"refused with {status}" in found.detail


def test_a_member_that_is_not_there() -> None:
    found = read(plays([]), pod=None)
    assert (found.before, found.after) == (None, None)
    assert judged(found) == (Verdict.HELD, Reason.MEMBER_GONE)


def test_an_api_server_that_is_away() -> None:
    async def work() -> MemberRead:
        kube = Kube(client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
        try:
            return await one_read(kube)
        finally:
            await kube.close()

    assert judged(asyncio.run(work())) == (Verdict.HELD, Reason.EXEC_FAILED)


def test_the_captured_member_is_the_one_of_the_table() -> None:
    assert CAPTURED.uid == MEMBER.uid
