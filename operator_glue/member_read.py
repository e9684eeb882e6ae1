"""One bounded, read-only look into a member: its own agent, run in its own container.

What comes back is not judged here (operator_glue.retirement.judging); why nothing does is one reason each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from operator_glue import names
from operator_glue.kube import PODS, Forbidden, Kube, KubeError, NotFound
from operator_glue.retirement.data import Member, MemberRead, ReadFault
from operator_glue.retirement.members import member_of
from operator_glue.retirement.reasons import Reason

#: The specification's: the whole read with its connection (the agent's own bound on the engine is 2 s), and its answer.
WHOLE_S = 5.0
MAX_BYTES = 1024 * 1024

#: The agent's exit statuses with an envelope: idle, busy, unknown or unmeasurable.
_WITH_ENVELOPE = (0, 1, 3)
#: What runc, containerd and a Python without the agent's folder say (each seen here).
_NOT_THERE = ("no such file or directory", "executable file not found", "can't open file", "can't find '__main__'")
_SHOWN_CHARS = 300
_STDOUT, _STDERR, _STATUS = 1, 2, 3


async def read_member(
    kube: Kube,
    namespace: str,
    member: Member,
    command: Sequence[str],
    clock: Callable[[], float],
    whole_s: float = WHOLE_S,
) -> MemberRead:
    """Never raises for what the member, its node or the API server does. ``clock``: seconds since the epoch."""
    started_at = clock()
    before: Member | None = None
    after: Member | None = None
    answer: bytes | ReadFault = ReadFault(Reason.MEMBER_GONE, f"Pod {member.name} is not there.")
    try:
        async with _within(whole_s):
            before = await _live(kube, namespace, member.name)
            if before is not None:
                answer = await _exec(kube, namespace, member.name, command)
                after = await _live(kube, namespace, member.name)
    except asyncio.TimeoutError:
        answer = ReadFault(Reason.EXEC_TIMED_OUT, f"The read of Pod {member.name} did not end within {whole_s:g} s.")
        after = before
    except KubeError as error:
        if before is None or not isinstance(answer, ReadFault):  # else the first thing that went wrong is told
            answer = ReadFault(Reason.EXEC_FAILED, f"Pod {member.name} could not be looked up: {error}")
        after = before
    return MemberRead(member.uid, started_at, clock(), before, after, answer)


class _within:  # noqa: N801 - asyncio.timeout, which Python 3.10 has not
    """Cancels what runs in it after so many seconds, and raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._late = seconds, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def late() -> None:
            self._late = True
            task.cancel()

        self._timer = asyncio.get_running_loop().call_later(self._seconds, late)

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        self._timer.cancel()
        if self._late and isinstance(error, asyncio.CancelledError):
            raise asyncio.TimeoutError from None


async def _live(kube: Kube, namespace: str, name: str) -> Member | None:
    try:
        return member_of(await kube.get(PODS, namespace, name))
    except NotFound:
        return None


async def _exec(kube: Kube, namespace: str, name: str, command: Sequence[str]) -> bytes | ReadFault:
    out, err, status = bytearray(), bytearray(), bytearray()
    try:
        async with kube.exec(namespace, name, names.MAIN_CONTAINER, command) as session:
            async for channel, data in session.frames:
                into = {_STDOUT: out, _STDERR: err, _STATUS: status}.get(channel)
                if into is not None:
                    into += data
                if len(out) + len(err) + len(status) > MAX_BYTES:
                    message = f"Pod {name} answered with more than {MAX_BYTES} bytes."
                    return ReadFault(Reason.EXEC_TOO_LARGE, message)
    except Forbidden as error:
        return ReadFault(Reason.EXEC_FORBIDDEN, str(error))
    except NotFound as error:
        return ReadFault(Reason.MEMBER_GONE, str(error))
    except KubeError as error:
        return _not_started(name, str(error))
    except (aiohttp.ClientError, OSError) as error:
        return ReadFault(Reason.EXEC_CUT, f"The session with Pod {name} broke: {type(error).__name__} {error}.")
    return _answer(name, bytes(out), bytes(err), bytes(status))


def _answer(name: str, out: bytes, err: bytes, status: bytes) -> bytes | ReadFault:
    """By the session's last word, a Status: without one the session was cut, whatever had come by then."""
    try:
        said = json.loads(status)
        if said.get("status") == "Success":
            return out
        message = str(said.get("message"))
        causes = (said.get("details") or {}).get("causes") or []
        codes = [cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"]
    except (ValueError, AttributeError, TypeError):
        return ReadFault(Reason.EXEC_CUT, f"The session with Pod {name} ended without its status.")
    code = int(codes[0]) if codes and str(codes[0]).isdigit() else None
    if code in _WITH_ENVELOPE and out:
        return out
    words = err.decode("utf-8", "replace").strip()
    return _not_started(name, f"{message}{': ' if words else ''}{words}")


def _not_started(name: str, message: str) -> ReadFault:
    shown = " ".join(message.split())[:_SHOWN_CHARS]
    if any(phrase in message.lower() for phrase in _NOT_THERE):
        return ReadFault(Reason.AGENT_MISSING, f"Pod {name}: {shown}")
    return ReadFault(Reason.EXEC_FAILED, f"Pod {name}: {shown}")
