"""The real hook process under test: starts it as the kubelet would, beside small listeners that write down who came.

A hook takes 6 to 13 s, so the cases of a module run side by side: a case is a generator that sets up, starts its hook
and yields; every case of the module is started before the first one goes on to its assertions (see ``concurrent``).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

ROOT = Path(__file__).resolve().parent.parent
#: As the renderer writes the hook's argv: the interpreter, isolated.
HOOK = (sys.executable, "-I", "-m", "drainagent", "hook")
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])

#: The grace of most cases: settle until 5, no read from 10 on, gone by 12.
GRACE_S = 15
#: How much later than the hook this process, shared with many servers, may see what the hook did on a quiet machine.
#: What a busy one adds is measured (``Lab.lag_s``).
OBSERVER_LAG_S = 0.15

#: No case's hook may take this long.
_LONGEST_RUN_S = 45.0

Case = Generator[None, None, None]


# ---------------------------------------------------------------------------------------------------------------------
# Pages and listeners


def vllm_page(running: float = 0, waiting: float = 0) -> bytes:
    """A small complete vLLM page."""
    return (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {float(running)}\n'
        "# TYPE vllm:num_requests_waiting gauge\n"
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {float(waiting)}\n'
    ).encode()


IDLE = vllm_page()
BUSY = vllm_page(running=3)
SGLANG_BUSY = b"# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 2.0\n"

#: What a listener does with a connection once the first bytes came; the number counts such connections from 0.
Behaviour = Callable[[socket.socket, int], None]


def answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def pages(*bodies: bytes) -> Behaviour:
    """One page a read, the last one for good."""
    return lambda connection, number: connection.sendall(answer(bodies[min(number, len(bodies) - 1)]))


def status(line: str) -> Behaviour:
    return lambda connection, _: connection.sendall(answer(b"no\n", line))


def silent(connection: socket.socket, _: int) -> None:
    """Takes the connection and the request, and says nothing."""
    while connection.recv(65536):
        pass


def drip(data: bytes, every_s: float = 0.05) -> Behaviour:
    """Sends ``data`` byte by byte, then its last byte for good."""

    def behave(connection: socket.socket, _: int) -> None:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(every_s)
        while True:
            connection.sendall(data[-1:])
            time.sleep(every_s)

    return behave


def flood(head: bytes) -> Behaviour:
    """Sends without end, as fast as it is taken."""

    def behave(connection: socket.socket, _: int) -> None:
        connection.sendall(head)
        block = b'vllm:num_requests_running{engine="0"} 0.0\n' * 1000
        while True:
            connection.sendall(block)

    return behave


@dataclass
class Visit:
    """A read as its listener saw it, on the monotonic clock: from the connection to its end."""

    arrived_s: float
    ended_s: float | None = None


class Listener:
    """A TCP listener on a thread. Only connections that say something are visits."""

    def __init__(
        self,
        behave: Behaviour,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.visits: list[Visit] = []
        self._behave, self._tls = behave, tls
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self._socket.listen(64)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._held: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}/metrics"

    def fileno(self) -> int:
        return self._socket.fileno()

    def client(self) -> socket.socket:
        """A client that connects and says nothing, open until the listener is closed."""
        connection = socket.create_connection((self.host, self.port))
        self._held.add(connection)
        return connection

    def close(self) -> None:
        """From here on a connection is refused; those that are open break off."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._held):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            arrived_s = time.monotonic()
            self._held.add(connection)
            threading.Thread(target=self._serve, args=(connection, arrived_s), daemon=True).start()

    def _serve(self, connection: socket.socket, arrived_s: float) -> None:
        raw = connection
        visit = None
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._held.add(connection)
                self._held.discard(raw)
            if connection.recv(65536):
                visit = Visit(arrived_s)
                self.visits.append(visit)
                self._behave(connection, len(self.visits) - 1)
                while connection.recv(65536):
                    pass
        except OSError:
            pass
        finally:
            if visit is not None:
                visit.ended_s = time.monotonic()
            connection.close()
            self._held.discard(connection)


def closed_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_AUTHORITY: list[trustme.CA] = []


def server_tls() -> ssl.SSLContext:
    """A listener's TLS with a certificate that nobody trusts."""
    if not _AUTHORITY:
        _AUTHORITY.append(trustme.CA())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _AUTHORITY[0].issue_cert("127.0.0.1").configure_cert(context)
    return context


# ---------------------------------------------------------------------------------------------------------------------
# Hooks


def process_start_s(pid: int) -> float:
    """When a process began, on this process's monotonic clock: the earlier end of the tick that /proc tells."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    boot_to_monotonic_s = time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") + boot_to_monotonic_s


def _running(besides: Collection[int]) -> int:
    """How many processes started from here (by their process group) want a core now."""
    own, group, count = os.getpid(), os.getpgrp(), 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own and int(name) not in besides:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                count += int(fields[2]) == group and fields[0] in {b"R", b"D"}
    return count


@dataclass(frozen=True)
class End:
    """How a hook ended. ``took_s``: from its process's start. ``text``: its stderr; ``lines``: the JSON lines of it."""

    status: int
    took_s: float
    text: str
    lines: tuple[dict[str, Any], ...]

    @property
    def last(self) -> dict[str, Any]:
        assert self.lines, f"no line in {self.text!r}"
        assert self.lines[-1]["event"] == "outcome", self.text
        return self.lines[-1]

    @property
    def outcome(self) -> str:
        return str(self.last["outcome"])

    @property
    def cause(self) -> str:
        return str(self.last["message"])

    @property
    def wrong(self) -> list[str]:
        """The sentences about wrong arguments."""
        return [line["message"] for line in self.lines if line.get("reason") == "WrongArgument"]

    @property
    def reads(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "read"]


def json_lines(text: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in text.splitlines() if line.startswith("{"))


class Metronome:
    """How late this machine is: a thread that sleeps, and writes down by how much too long."""

    _BEAT_S = 0.02

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._stopped = False
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._stopped:
            began_s = time.monotonic()
            time.sleep(self._BEAT_S)
            woke_s = time.monotonic()
            self._late.append((woke_s, woke_s - began_s - self._BEAT_S))

    def stop(self) -> None:
        self._stopped = True

    def worst_s(self, since_s: float, until_s: float) -> float:
        return max((late_s for woke_s, late_s in list(self._late) if since_s <= woke_s <= until_s), default=0.0)


@dataclass
class Run:
    """A hook that runs. ``process``: it, or what it was started through."""

    process: subprocess.Popen[bytes]
    started_s: float
    log: Path | None
    metronome: Metronome
    _ended_s: float | None = None
    _text: bytes = b""
    _waiter: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _wait(self) -> None:
        try:
            self.process.wait(_LONGEST_RUN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its end is later than any test takes for right
            self.process.wait()
        self._ended_s = time.monotonic()

    def end(self, within_s: float = 60) -> End:
        """Wait for it."""
        self._waiter.join(within_s)
        assert self._ended_s is not None, f"the hook still runs after {time.monotonic() - self.started_s:.1f} s"
        if self.process.stderr is not None and not self.process.stderr.closed:
            self._text = self.process.stderr.read()
            self.process.stderr.close()
        raw = self.log.read_bytes() if self.log is not None else self._text
        text = raw.decode("utf-8", "backslashreplace")
        return End(self.process.returncode, self._ended_s - self.started_s, text, json_lines(text))

    @property
    def lag_s(self) -> float:
        """What this machine may have added to any moment of this run: 0.15 s where nothing else runs."""
        until_s = time.monotonic() if self._ended_s is None else self._ended_s + 1
        return OBSERVER_LAG_S + 3 * self.metronome.worst_s(self.started_s, until_s)

    def took(self, at_least_s: float, late_s: float = 1.3) -> None:
        """It took this long, or a little longer: a busy machine may cost a slot of the grid of reads."""
        end = self.end()
        assert at_least_s <= end.took_s <= at_least_s + late_s + self.lag_s, f"{end.took_s:.3f} s: {end.text}"

    def signal_at(self, at_s: float, number: signal.Signals) -> None:
        """Send it a signal ``at_s`` after its start, unless it has ended by then."""
        self.call_at(at_s, lambda: os.kill(self.pid, number) if self._ended_s is None else None)

    def call_at(self, at_s: float, call: Callable[[], None]) -> None:
        def wait_and_call() -> None:
            time.sleep(max(0.0, self.started_s + at_s - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                call()

        threading.Thread(target=wait_and_call, daemon=True).start()

    def arrivals_s(self, listener: Listener) -> list[float]:
        """When the listener was read, from the hook's start."""
        return [visit.arrived_s - self.started_s for visit in listener.visits]

    def keeps_the_timeline(
        self,
        *listeners: Listener,
        grace_s: float = GRACE_S,
        settle_s: float = 5.0,
        reads: int | None = None,
        places_s: Sequence[float] = (0.0,),
    ) -> None:
        """The promises that hold whatever the listener does.

        ``reads``: how many, on consecutive slots; ``places_s``: where in its second each read lies, in turn.
        """
        end = self.end()
        lag_s = self.lag_s
        assert end.took_s <= grace_s - 3 + lag_s, end.text
        for listener in listeners:
            listener.visits.sort(key=lambda visit: visit.arrived_s)
            arrived = self.arrivals_s(listener)
            shown = f"{[round(at_s, 3) for at_s in arrived]}, lag {lag_s:.3f} s"
            assert all(settle_s <= at_s < grace_s - 5 + lag_s - OBSERVER_LAG_S for at_s in arrived), shown
            late = [(at_s - settle_s - place_s) % 1 for at_s, place_s in zip(arrived, itertools.cycle(places_s))]
            assert all(late_s <= lag_s for late_s in late), shown
            slots = [int(at_s - settle_s) for at_s in arrived]
            assert slots == sorted(set(slots)), shown
            if reads is not None and lag_s < 1:  # a machine that stands still for a second loses a slot
                assert slots == list(range(reads)), shown
            for visit, following in zip(listener.visits, listener.visits[1:], strict=False):
                assert visit.ended_s is not None
                assert visit.ended_s <= following.arrived_s + lag_s, "two reads at once"


class Lab:
    """Starts listeners and hooks for the cases of one module, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listeners: list[Listener] = []
        self._runs: list[Run] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._closers: list[Callable[[], None]] = []
        self._spinning: set[int] = set()
        self._folders = 0
        self.metronome = Metronome()

    def listener(self, behave: Behaviour, **options: Any) -> Listener:
        listener = Listener(behave, **options)
        self._listeners.append(listener)
        return listener

    def on_close(self, close: Callable[[], None]) -> None:
        self._closers.append(close)

    def new_folder(self) -> Path:
        self._folders += 1
        folder = self.folder / f"case-{self._folders}"
        folder.mkdir()
        folder.chmod(0o755)
        return folder

    def hook(
        self,
        *arguments: str,
        command: Sequence[str] = HOOK,
        through: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stderr: int = subprocess.PIPE,
        log: Path | None = None,
        grace: str | None = str(GRACE_S),
        log_format: str | None = "json",
        spins: bool = False,
    ) -> Run:
        """Start a hook as the kubelet does. ``through``: words before it, of a program that execs it.

        ``spins``: it will keep a core busy, so that the next start does not wait for it to be quiet.
        """
        words = [*through, *command, *arguments]
        words += [] if grace is None else ["--grace", grace]
        words += [] if log_format is None else ["--log-format", log_format]
        self._wait_for_quiet()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=dict(env or {}), cwd=cwd
        )
        run = Run(process, process_start_s(process.pid), log, self.metronome)
        self._runs.append(run)
        if spins:
            self._spinning.add(run.pid)
        return run

    def _wait_for_quiet(self) -> None:
        """Until a core is free: a hook's imports take one for a while, and their time is part of its settle."""
        until_s = time.monotonic() + 4
        besides = self._spinning.union(process.pid for process in self._others)
        cores = len(os.sched_getaffinity(0))
        quiet = 0
        while quiet < 3 and time.monotonic() < until_s:
            time.sleep(0.02)
            quiet = 0 if _running(besides) >= cores else quiet + 1

    def other(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Another process of the case, killed at the end."""
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **options)
        self._others.append(process)
        return process

    def close(self) -> None:
        self.metronome.stop()
        for process in [*self._others, *(run.process for run in self._runs)]:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for listener in self._listeners:
            listener.close()
        for close in self._closers:
            close()


# ---------------------------------------------------------------------------------------------------------------------
# What a case may need of the machine


def program(name: str) -> str:
    """A program's path, or a skip that says what is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the case makes namespaces and mounts")


_TRIED: dict[tuple[str, ...], str | None] = {}


def need(*words: str) -> None:
    """Skip unless this command succeeds here."""
    if words not in _TRIED:
        tried = subprocess.run(words, check=False, capture_output=True, text=True, env={}, timeout=20)
        _TRIED[words] = None if tried.returncode == 0 else (tried.stderr.strip() or f"status {tried.returncode}")
    if _TRIED[words] is not None:
        pytest.skip(f"cannot be done here: {' '.join(words)}: {_TRIED[words]}")


def in_mounts(script: str) -> list[str]:
    """Words that run ``script`` in a mount namespace of its own and then exec what follows."""
    need_root()
    unshare = program("unshare")
    need(unshare, "-m", "true")
    return [unshare, "-m", "/bin/sh", "-ec", f'{script}\nexec "$@"', "sh"]


def alone_on_the_network(start: str = "") -> list[str]:
    """A network namespace of its own, so that discovery finds nobody else's engine; ``start``: shell to run in it."""
    need_root()
    unshare, ip = program("unshare"), program("ip")
    need(unshare, "-n", ip, "link", "set", "lo", "up")
    return [unshare, "-n", "/bin/sh", "-ec", f'{ip} link set lo up\n{start}\nexec "$@"', "sh"]


def reachable_script(*paths: Path) -> str:
    """Mounts, for ``in_mounts``, that let any user reach these folders: what hides them is covered by an empty folder.

    (An interpreter under a home of mode 0700, as pyenv leaves it to root.)
    """
    wanted = sorted({path.resolve() for path in paths})
    hiding = sorted({parent for path in wanted for parent in path.parents if not parent.stat().st_mode & 0o001})
    tops = [one for one in hiding if not any(other in one.parents for other in hiding)]
    lines = []
    for top in tops:
        inside = [path for path in wanted if top in path.parents]
        lines += ["keep=$(mktemp -d)", "mount -t tmpfs -o mode=755 tmpfs $keep"]
        for number, path in enumerate(inside):
            lines += [f"mkdir $keep/{number}", f"mount --bind '{path}' $keep/{number}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs '{top}'")
        for number, path in enumerate(inside):
            lines += [f"mkdir -p '{path}'", f"mount --bind $keep/{number} '{path}'"]
        lines += ["umount -l $keep", "rmdir $keep"]
    return "\n".join(lines)


def reachable() -> str:
    """The same for what a hook of this environment reads: interpreter, packages, this tree."""
    return reachable_script(Path(sys.base_prefix), Path(sys.prefix), ROOT / "drainagent")


def as_user(uid: int = 12345) -> list[str]:
    return [program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def command_line_in(package_parent: Path, before: str = "") -> tuple[str, ...]:
    """A hook whose package is the copy in ``package_parent``, ``before`` run first; nothing is cached on disk."""
    code = (
        f"import sys; sys.path.insert(0, {str(package_parent)!r}); sys.argv[0] = 'drainagent'\n"
        f"{before}\n"
        "from drainagent.__main__ import main\n"
        "main()\n"
    )
    return (sys.executable, "-I", "-B", "-c", code, "hook")


def copy_package(into: Path, **changes: str) -> Path:
    """The package in ``into``, with ``module="text"`` added to the end of modules; the folder to import it from."""
    shutil.copytree(ROOT / "drainagent", into / "drainagent", ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in changes.items():
        with (into / "drainagent" / f"{module}.py").open("a") as file:
            file.write(f"\n{text}\n")
    return into


# ---------------------------------------------------------------------------------------------------------------------
# Side by side


def concurrent(case: Callable[..., Case]) -> Callable[..., None]:
    """A test made of a generator ``case(lab, **parameters)``: up to its ``yield`` beside all others of its module."""

    def test(request: pytest.FixtureRequest, started_cases: Mapping[str, Case | BaseException], **_: object) -> None:
        begun = started_cases[request.node.nodeid]
        if isinstance(begun, BaseException):
            raise begun
        assert next(begun, "ended") == "ended", "a case yields once"

    own = inspect.signature(test).parameters
    parameters = list(inspect.signature(case).parameters.values())[1:]
    vars(test).update(
        concurrent_case=case,
        pytestmark=list(getattr(case, "pytestmark", [])),
        __signature__=inspect.Signature([own["request"], own["started_cases"], *parameters]),
        __module__=case.__module__,
        __doc__=case.__doc__,
    )
    test.__name__ = test.__qualname__ = case.__name__
    return test


@pytest.fixture(scope="module")
def started_cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Case | BaseException]]:
    """Every selected case of the module, started (or what its start raised)."""
    folder = tmp_path_factory.mktemp("lab")
    for above in (folder, *folder.parents[:2]):
        if above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o055)
    lab = Lab(folder)
    cases: dict[str, Case | BaseException] = {}
    try:
        for item in request.session.items:
            case = getattr(getattr(item, "obj", None), "concurrent_case", None)
            if case is None or item.path != request.path:
                continue
            callspec = getattr(item, "callspec", None)
            begun = case(lab, **(callspec.params if callspec is not None else {}))
            try:
                next(begun)
                cases[item.nodeid] = begun
            except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
                cases[item.nodeid] = error
        yield cases
    finally:
        for begun in cases.values():
            if not isinstance(begun, BaseException):
                begun.close()
        lab.close()
