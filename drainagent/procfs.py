"""What /proc tells: when this process began, the socket table, the engine's process and the container's own log.

Nothing here needs a privilege. What cannot be read (another user's process, /proc with hidepid) is left out.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drainagent.engine_argv import EngineCommand, read_command
from drainagent.sockets import endpoint, is_table, listener_inodes

_MAX_STRINGS_BYTES = 1024 * 1024
_MAX_TABLE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class EngineProcess:
    """A process whose command line starts an engine."""

    pid: int
    command: EngineCommand


def read_tables() -> Sequence[bytes] | None:
    """The texts of /proc/self/net/tcp and tcp6; None when they cannot be read (no tcp6 is no IPv6, not a failure)."""
    tables: list[bytes] = []
    for name in ("tcp", "tcp6"):
        try:
            text = _read(f"/proc/self/net/{name}", _MAX_TABLE_BYTES)
        except FileNotFoundError:
            if name == "tcp6" and tables:
                continue
            return None
        except OSError:
            return None
        if not is_table(text):
            return None
        tables.append(text)
    return tables


def engine_processes() -> list[EngineProcess]:
    """Engines running in this network namespace that this user may see, in the order of their start."""
    own_namespace = _link("/proc/self/ns/net")
    found = []
    for pid in _pids():
        argv = _strings(f"/proc/{pid}/cmdline")
        if not isinstance(read_command(argv, expand=False), EngineCommand):
            continue
        # Now with its environment: both engines choose another server by a variable.
        command = read_command(argv, _environ(pid), expand=False)
        if not isinstance(command, EngineCommand):
            continue
        namespace = _link(f"/proc/{pid}/ns/net")
        if namespace is None or own_namespace is None or namespace == own_namespace:
            found.append(EngineProcess(pid, command))
    return found


def is_own_address(host: str) -> bool:
    """The address belongs to this network namespace: it can be bound here. Opens no connection."""
    address = endpoint(host, 0).address
    if address[0] >= (224 if len(address) == 4 else 255):
        return False  # multicast and broadcast can be bound anywhere
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        # The loopbacks are ours whether or not the namespace has that family.
        return host in {"127.0.0.1", "::1"} and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
    return True


def container_log(port: int | None) -> int | None:
    """A descriptor of the container's own log, opened so that no write to it can block; None when there is none.

    It is the stdout of PID 1 where a kubelet's exec started us beside it. With a shared process namespace PID 1 is the
    pause program of another container, known by its mount namespace: then it is the stdout of the process that owns
    the listener on ``port``. Started by hand, from a terminal, by an entry point or on a host, there is none: stderr
    serves.
    """
    if not _was_executed_into_the_container() or os.isatty(2):
        return None
    own_mounts = _link("/proc/self/ns/mnt")
    if own_mounts is not None and _link("/proc/1/ns/mnt") == own_mounts:
        return _open_log(1)
    owner = _listener_owner(port, own_mounts)
    return None if owner is None else _open_log(owner)


def _open_log(pid: int) -> int | None:
    # Opened anew through /proc, so that O_NONBLOCK is this descriptor's alone and not the engine's.
    try:
        return os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _was_executed_into_the_container() -> bool:
    """Our parent, or a shell's that started us, is outside the process namespace, as the kubelet's exec is."""
    parent = os.getppid()
    return parent == 0 or _parent(parent) == 0


def _parent(pid: int) -> int | None:
    try:
        # The name stands in parentheses and may hold any character, so the fields are counted after the last one.
        return int(_read(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _listener_owner(port: int | None, own_mounts: str | None) -> int | None:
    tables = read_tables()
    if port is None or tables is None:
        return None
    wanted = {f"socket:[{inode}]" for inode in listener_inodes(tables, port)}
    for pid in _pids():
        if _link(f"/proc/{pid}/ns/mnt") != own_mounts:
            continue
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        if any(_link(f"/proc/{pid}/fd/{descriptor}") in wanted for descriptor in descriptors):
            return pid
    return None


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    own = os.getpid()
    yield from sorted(int(name) for name in names if name.isdigit() and int(name) != own)


def _environ(pid: int) -> dict[str, str]:
    """A process's environment as it was at its start; empty when this user may not see it."""
    return {name: value for name, _, value in (text.partition("=") for text in _strings(f"/proc/{pid}/environ"))}


def _strings(path: str) -> list[str]:
    try:
        text = _read(path, _MAX_STRINGS_BYTES)
    except OSError:
        return []
    return [word.decode("utf-8", "surrogateescape") for word in text.split(b"\0")[:-1]]


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _read(path: str, bound_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        chunks = []
        left = bound_bytes
        while left > 0:
            chunk = file.read(min(left, 1 << 16))
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
