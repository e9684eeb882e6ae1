"""The socket table's text to who is connected to a listener and what they still owe each other. Pure.

The table is /proc/net/tcp and tcp6 of the container's own network namespace, readable without privilege. Its format
(one row a socket, addresses as hexadecimal words in the machine's byte order) is the kernel's, in
Documentation/networking/proc_net_tcp.rst; the state numbers are those of include/net/tcp_states.h.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1 = "01", "02", "03", "04"
CLOSE_WAIT, LAST_ACK, LISTEN, CLOSING, NEW_SYN_RECV = "08", "09", "0A", "0B", "0C"

#: A client is connected. (One whose last byte is on its way out has left these states: its bytes are counted instead.)
CONNECTED = frozenset({ESTABLISHED, SYN_RECV, NEW_SYN_RECV, CLOSE_WAIT})
#: The engine has closed: its FIN stands in the send queue as one byte until the client acknowledges it.
_FIN_QUEUED = frozenset({FIN_WAIT1, CLOSING, LAST_ACK})

_V4_MAPPED = bytes(10) + b"\xff\xff"
#: How many peers a reading names.
PEERS_NAMED = 8


@dataclass(frozen=True)
class Endpoint:
    """An address (4 or 16 bytes; v4-mapped ones as 4) and a port."""

    address: bytes
    port: int

    def __str__(self) -> str:
        if len(self.address) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, self.address)}:{self.port}"
        return f"[{socket.inet_ntop(socket.AF_INET6, self.address)}]:{self.port}"

    @property
    def host(self) -> str:
        """The address as text, without brackets."""
        return socket.inet_ntop(socket.AF_INET if len(self.address) == 4 else socket.AF_INET6, self.address)


@dataclass(frozen=True)
class Connection:
    """A connection as the listener's side names it."""

    local: Endpoint
    remote: Endpoint


@dataclass(frozen=True)
class Clients:
    """What the table says of one listener's clients, ours left out.

    ``connections``: clients connected. ``unacked_bytes``: sent by the engine and not acknowledged, in any state.
    ``unread_bytes``: received and not yet read by the engine. ``peers``: the first few, as text.
    """

    connections: int
    unacked_bytes: int
    unread_bytes: int
    peers: tuple[str, ...] = ()


def endpoint(host: str, port: int) -> Endpoint:
    """From the text form of an address, a scope such as ``%eth0`` left out. ValueError when it is none."""
    host = host.partition("%")[0]
    try:
        if ":" not in host:
            return Endpoint(socket.inet_pton(socket.AF_INET, host), port)
        return Endpoint(_normal(socket.inet_pton(socket.AF_INET6, host)), port)
    except OSError:
        raise ValueError(f"{host!r} is no IP address") from None


def clients(
    tables: Sequence[bytes],
    port: int,
    own_open: Collection[Connection] = (),
    own_closed: Collection[Connection] = (),
    ignored_peers: Sequence[tuple[bytes, int]] = (),
) -> Clients:
    """Everything connected to ``port`` in ``tables`` (the texts of tcp and tcp6).

    ``own_open``: connections this process holds, left out. ``own_closed``: ones it has closed, left out while the
    engine has not noticed; once the table shows their client side established again, the port has gone to somebody
    else and they count. Both by exact 4-tuple: a loopback peer may be a proxy or a router in the same Pod.
    ``ignored_peers``: networks as (address bytes, prefix length) whose connections are no requests.
    """
    connections = unacked = unread = 0
    peers: list[str] = []
    # By their ends: while connections come and go, the kernel can list one twice.
    rows = {(row[0], row[1]): row[2:] for table in tables for row in _rows(table, port)}
    for (local, remote), (state, sent, received) in rows.items():
        if state in {LISTEN, SYN_SENT}:
            continue
        connection = Connection(local, remote)
        if connection in own_open or any(_within(remote.address, *network) for network in ignored_peers):
            continue
        if connection in own_closed and not _is_held(tables, connection):
            continue
        owed = max(0, sent - 1) if state in _FIN_QUEUED else sent
        waiting = received if state in CONNECTED else 0
        unacked += owed
        unread += waiting
        connections += state in CONNECTED
        if (state in CONNECTED or owed) and len(peers) < PEERS_NAMED:
            peers.append(str(remote))
    return Clients(connections, unacked, unread, tuple(peers))


def listening_addresses(tables: Sequence[bytes], port: int) -> tuple[str, ...]:
    """Addresses with a LISTEN socket on ``port``, as text; the wildcard addresses among them as they are."""
    found = [local.host for table in tables for local, _, state, _, _ in _rows(table, port) if state == LISTEN]
    return tuple(dict.fromkeys(found))


def listening_ports(tables: Sequence[bytes]) -> frozenset[int]:
    """Every port with a LISTEN socket."""
    pattern = rb"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A "
    return frozenset(int(found, 16) for table in tables for found in re.findall(pattern, table, re.M))


def listener_inodes(tables: Sequence[bytes], port: int) -> frozenset[int]:
    """Inodes of the LISTEN sockets on ``port``: /proc/PID/fd links to ``socket:[inode]`` name their owner."""
    pattern = rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 0A (?:\S+ +){5}(\d+)" % port
    return frozenset(int(found) for table in tables for found in re.findall(pattern, table, re.M))


def is_table(text: bytes) -> bool:
    """The text has the table's heading: anything else is not to be taken for "nobody is connected"."""
    return text.lstrip().startswith(b"sl ")


def _rows(table: bytes, port: int) -> list[tuple[Endpoint, Endpoint, str, int, int]]:
    pattern = (
        rb"^ *\d+: ([0-9A-F]{8}(?:[0-9A-F]{24})?):%04X ([0-9A-F]{8}(?:[0-9A-F]{24})?):([0-9A-F]{4})"
        # 06 is TIME_WAIT: over, and by the ten thousand on a busy node.
        rb" (?!06)([0-9A-F]{2}) ([0-9A-F]{8}):([0-9A-F]{8})" % port
    )
    return [
        (
            Endpoint(_address(local), port),
            Endpoint(_address(remote), int(remote_port, 16)),
            state.decode(),
            int(sent, 16),
            int(received, 16),
        )
        for local, remote, remote_port, state, sent, received in re.findall(pattern, table, re.M)
    ]


def _is_held(tables: Sequence[bytes], connection: Connection) -> bool:
    """The client's side of the connection stands in the table as open: somebody uses it."""
    return any(
        local == connection.remote and remote == connection.local and state in {ESTABLISHED, SYN_SENT, CLOSE_WAIT}
        for table in tables
        for local, remote, state, _, _ in _rows(table, connection.remote.port)
    )


def _address(text: bytes) -> bytes:
    words = struct.unpack(f">{len(text) // 8}I", bytes.fromhex(text.decode()))
    order = "<" if sys.byteorder == "little" else ">"
    return _normal(struct.pack(f"{order}{len(words)}I", *words))


def _normal(address: bytes) -> bytes:
    return address[12:] if len(address) == 16 and address.startswith(_V4_MAPPED) else address


def _within(address: bytes, network: bytes, prefix_bits: int) -> bool:
    if len(address) != len(network):
        return False
    shift = len(network) * 8 - prefix_bits
    return int.from_bytes(address, "big") >> shift == int.from_bytes(network, "big") >> shift
