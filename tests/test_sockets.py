"""drainagent.sockets over tables as the kernel prints them, generated ones, and this machine's own."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainagent import procfs
from drainagent.sockets import (
    CONNECTED,
    PEERS_NAMED,
    Clients,
    Connection,
    Endpoint,
    clients,
    endpoint,
    is_table,
    listener_inodes,
    listening_addresses,
    listening_ports,
)

PORT = 8000
HEADING_4 = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
HEADING_6 = (
    b"  sl  local_address                         remote_address                        st tx_queue rx_queue tr "
    b"tm->when retrnsmt   uid  timeout inode\n"
)
ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, TIME_WAIT = 1, 2, 3, 4, 5, 6
CLOSE, CLOSE_WAIT, LAST_ACK, LISTEN, CLOSING, NEW_SYN_RECV = 7, 8, 9, 10, 11, 12
STATES = range(1, 13)


@dataclass(frozen=True)
class Row:
    """One socket, as the kernel prints it in tcp (IPv4) or tcp6 (by the family of ``local``)."""

    local: str
    remote: str
    state: int = ESTABLISHED
    sent: int = 0
    received: int = 0
    port: int = PORT
    remote_port: int = 40000
    inode: int = 0

    @property
    def connection(self) -> Connection:
        return Connection(endpoint(self.local, self.port), endpoint(self.remote, self.remote_port))

    @property
    def other_side(self) -> Row:
        return Row(self.remote, self.local, ESTABLISHED, port=self.remote_port, remote_port=self.port)


def words(address: str) -> str:
    packed = ipaddress.ip_address(address).packed
    return "".join(f"{int.from_bytes(packed[i : i + 4], sys.byteorder):08X}" for i in range(0, len(packed), 4))


def tables(*rows: Row) -> list[bytes]:
    """tcp and tcp6."""
    lines: tuple[list[bytes], list[bytes]] = ([HEADING_4], [HEADING_6])
    for index, row in enumerate(rows):
        line = (
            f"{index:4d}: {words(row.local)}:{row.port:04X} {words(row.remote)}:{row.remote_port:04X} {row.state:02X} "
            f"{row.sent:08X}:{row.received:08X} 00:00000000 00000000  1000        0 {row.inode} 1"
        )
        lines[":" in row.local].append(line.ljust(149 if ":" not in row.local else 0).encode() + b"\n")
    return [b"".join(part) for part in lines]


# ---- one row


def test_a_row_as_the_kernel_printed_it() -> None:
    table = HEADING_4 + (
        b"   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 24631 1 "
        b"0000000000000000 100 0 0 10 0                     \n"
        b"   1: 0100007F:1F40 0500000A:C350 01 0000000A:00000003 01:00000014 00000000  1000        0 0 2 "
        b"0000000000000000 20 4 30 10 -1                    \n"
    )
    assert clients([table], PORT) == Clients(1, 10, 3, ("10.0.0.5:50000",))
    assert listening_addresses([table], PORT) == ("0.0.0.0",)
    assert listening_ports([table]) == {PORT}
    assert listener_inodes([table], PORT) == {24631}


@pytest.mark.parametrize(
    ("local", "remote", "peer"),
    [
        ("10.0.0.1", "10.0.0.5", "10.0.0.5:40000"),
        ("fd00::1", "fd00::5", "[fd00::5]:40000"),
        ("::1", "::1", "[::1]:40000"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.5", "10.0.0.5:40000"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:a:b:c:d:e:f", "[2001:db8:a:b:c:d:e:f]:40000"),
    ],
)
def test_addresses(local: str, remote: str, peer: str) -> None:
    assert clients(tables(Row(local, remote)), PORT) == Clients(1, 0, 0, (peer,))


@pytest.mark.parametrize("family", ["4", "6", "mapped"])
@pytest.mark.parametrize(
    ("state", "sent", "received", "found"),
    [
        (ESTABLISHED, 0, 0, (1, 0, 0)),
        (ESTABLISHED, 7, 9, (1, 7, 9)),
        (SYN_RECV, 0, 0, (1, 0, 0)),
        (NEW_SYN_RECV, 0, 0, (1, 0, 0)),
        # The client has closed its side; the engine still answers.
        (CLOSE_WAIT, 5, 1, (1, 5, 1)),
        # The engine has closed: one byte of the queue is its FIN, what stands beyond it is owed.
        (FIN_WAIT1, 1, 0, (0, 0, 0)),
        (FIN_WAIT1, 2, 0, (0, 1, 0)),
        (FIN_WAIT1, 4001, 3, (0, 4000, 0)),
        (LAST_ACK, 1, 0, (0, 0, 0)),
        (LAST_ACK, 101, 0, (0, 100, 0)),
        (CLOSING, 1, 0, (0, 0, 0)),
        (CLOSING, 11, 0, (0, 10, 0)),
        (FIN_WAIT1, 0, 0, (0, 0, 0)),
        # Everything is acknowledged.
        (FIN_WAIT2, 0, 0, (0, 0, 0)),
        (TIME_WAIT, 0, 0, (0, 0, 0)),
        (CLOSE, 0, 0, (0, 0, 0)),
        # A backlog's length and bound stand where a connection's bytes do.
        (LISTEN, 128, 3, (0, 0, 0)),
        # The engine's own connection out from this port.
        (SYN_SENT, 1, 0, (0, 0, 0)),
    ],
)
def test_states(family: str, state: int, sent: int, received: int, found: tuple[int, int, int]) -> None:
    local, remote = {
        "4": ("10.0.0.1", "10.0.0.5"),
        "6": ("fd00::1", "fd00::5"),
        "mapped": ("::ffff:10.0.0.1", "::ffff:10.0.0.5"),
    }[family]
    result = clients(tables(Row(local, remote, state, sent, received)), PORT)
    assert (result.connections, result.unacked_bytes, result.unread_bytes) == found
    assert len(result.peers) == (found[0] or bool(found[1]))


def test_other_ports_do_not_count() -> None:
    rows = [
        Row("10.0.0.1", "10.0.0.5", port=8001),
        # This port, but of the peer: the engine is the client there.
        Row("10.0.0.1", "10.0.0.5", port=50000, remote_port=PORT, sent=9),
        Row("fd00::1", "fd00::5", port=80),
    ]
    assert clients(tables(*rows), PORT) == Clients(0, 0, 0)


def test_both_families_are_added_and_the_first_peers_named() -> None:
    rows = [Row("10.0.0.1", f"10.0.1.{i}", sent=1, received=2) for i in range(6)]
    rows += [Row("fd00::1", f"fd00::{i:x}", sent=10) for i in range(1, 7)]
    found = clients(tables(*rows), PORT)
    assert (found.connections, found.unacked_bytes, found.unread_bytes) == (12, 66, 12)
    assert found.peers == (*(f"10.0.1.{i}:40000" for i in range(6)), "[fd00::1]:40000", "[fd00::2]:40000")
    assert len(found.peers) == PEERS_NAMED


@pytest.mark.parametrize("local", ["10.0.0.1", "fd00::1"])
def test_a_row_listed_twice_counts_once(local: str) -> None:
    row = Row(local, local, sent=7, received=9)
    assert clients(tables(row, row), PORT) == Clients(1, 7, 9, (str(row.connection.remote),))


# ---- our own connections


@pytest.mark.parametrize(
    ("local", "remote"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::ffff:127.0.0.1", "::ffff:127.0.0.1")]
)
def test_an_open_connection_of_ours_is_left_out_by_its_four_tuple_only(local: str, remote: str) -> None:
    ours, other = Row(local, remote, remote_port=50001, sent=500), Row(local, remote, remote_port=50002)
    found = clients(tables(ours, ours.other_side, other, other.other_side), PORT, own_open=[ours.connection])
    assert found.connections == 1
    assert found.unacked_bytes == 0
    assert found.peers == (str(other.connection.remote),)
    # The same peer, another local address of the listener.
    elsewhere = Connection(endpoint("10.9.9.9", PORT), ours.connection.remote)
    assert clients(tables(ours), PORT, own_open=[elsewhere]).connections == 1


def test_a_v4_mapped_row_is_the_same_connection_as_its_ipv4_ends() -> None:
    ours = Connection(endpoint("127.0.0.1", PORT), endpoint("127.0.0.1", 40000))
    assert clients(tables(Row("::ffff:127.0.0.1", "::ffff:127.0.0.1")), PORT, own_open=[ours]) == Clients(0, 0, 0)


@pytest.mark.parametrize("state", [ESTABLISHED, CLOSE_WAIT, FIN_WAIT1, LAST_ACK])
def test_a_closed_connection_of_ours_is_left_out_while_the_engine_has_not_noticed(state: int) -> None:
    ours = Row("127.0.0.1", "127.0.0.1", state, sent=70, remote_port=50001)
    assert clients(tables(ours), PORT, own_closed=[ours.connection]) == Clients(0, 0, 0)
    # Our side of it, on its way out.
    for leaving in (FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSING):
        side = Row("127.0.0.1", "127.0.0.1", leaving, port=50001, remote_port=PORT)
        assert clients(tables(ours, side), PORT, own_closed=[ours.connection]) == Clients(0, 0, 0)


@pytest.mark.parametrize("state", [ESTABLISHED, SYN_SENT, CLOSE_WAIT])
@pytest.mark.parametrize("local", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_closed_connection_whose_port_somebody_else_has_now_counts(state: int, local: str) -> None:
    row = Row(local, local, remote_port=50001, sent=3)
    # The client's own socket may be of the other family: a mapped listener, a plain IPv4 client.
    client_local = "127.0.0.1" if local.startswith("::ffff:") else local
    client = Row(client_local, client_local, state, port=50001, remote_port=PORT)
    found = clients(tables(row, client), PORT, own_closed=[row.connection])
    assert (found.connections, found.unacked_bytes) == (1, 3)


# ---- peers that are no clients


@pytest.mark.parametrize(
    ("network", "local", "remote", "counted"),
    [
        ("10.0.0.0/8", "10.0.0.1", "10.200.3.4", False),
        ("10.0.0.0/8", "10.0.0.1", "11.0.0.1", True),
        ("10.0.0.5/32", "10.0.0.1", "10.0.0.5", False),
        ("10.0.0.5/32", "10.0.0.1", "10.0.0.4", True),
        ("0.0.0.0/0", "10.0.0.1", "10.0.0.4", False),
        ("0.0.0.0/0", "fd00::1", "fd00::5", True),
        ("::/0", "10.0.0.1", "10.0.0.4", True),
        ("::/0", "fd00::1", "fd00::5", False),
        ("10.0.0.0/8", "::ffff:10.0.0.1", "::ffff:10.0.0.5", False),
        ("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", False),
        ("fd00::/64", "fd00::1", "fd00:0:0:1::1", True),
        ("10.0.0.7/31", "10.0.0.1", "10.0.0.6", False),
    ],
)
def test_ignored_peers(network: str, local: str, remote: str, counted: bool) -> None:
    ignored = ipaddress.ip_network(network, strict=False)
    peers = [(ignored.network_address.packed, ignored.prefixlen)]
    found = clients(tables(Row(local, remote, sent=5, received=6)), PORT, ignored_peers=peers)
    assert found == (Clients(1, 5, 6, (str(endpoint(remote, 40000)),)) if counted else Clients(0, 0, 0))


# ---- listeners


def test_listeners() -> None:
    rows = [
        Row("0.0.0.0", "0.0.0.0", LISTEN, remote_port=0, inode=11),
        Row("::", "::", LISTEN, remote_port=0, inode=12),
        Row("10.0.0.1", "0.0.0.0", LISTEN, remote_port=0, inode=13),
        Row("10.0.0.1", "0.0.0.0", LISTEN, remote_port=0, inode=14),  # SO_REUSEPORT: several of one address
        Row("fd00::1", "::", LISTEN, remote_port=0, inode=15, port=30000),
        Row("10.0.0.1", "10.0.0.5", inode=16),
        Row("10.0.0.1", "10.0.0.5", inode=17, port=9),
    ]
    found = tables(*rows)
    assert listening_addresses(found, PORT) == ("0.0.0.0", "10.0.0.1", "::")
    assert listening_addresses(found, 30000) == ("fd00::1",)
    assert listening_ports(found) == {PORT, 30000}
    assert listener_inodes(found, PORT) == {11, 12, 13, 14}
    assert listener_inodes(found, 9) == frozenset()


@pytest.mark.parametrize(
    ("text", "found"),
    [(HEADING_4, True), (HEADING_6, True), (b"", False), (b"\n", False), (b"nothing", False), (b"slx", False)],
)
def test_is_table(text: bytes, found: bool) -> None:
    assert is_table(text) is found


@pytest.mark.parametrize("text", ["127.0.0.1", "10.1.2.3", "::1", "fe80::1%eth0", "::ffff:1.2.3.4"])
def test_endpoint_and_its_text(text: str) -> None:
    address = ipaddress.ip_address(text.partition("%")[0])
    plain = getattr(address, "ipv4_mapped", None) or address
    found = endpoint(text, 80)
    assert found.address == plain.packed
    assert found.host == str(plain)
    assert str(found) == (f"{plain}:80" if plain.version == 4 else f"[{plain}]:80")


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "256.1.1.1", ":::", "[::1]", "01.2.3.4 "])
def test_an_endpoint_of_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no IP address"):
        endpoint(text, 80)


# ---- generated tables

ADDRESSES_4 = st.sampled_from(["127.0.0.1", "10.0.0.1", "10.0.0.2", "192.168.1.1"]) | st.ip_addresses(v=4).map(str)
ADDRESSES_6 = st.sampled_from(["::1", "fd00::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"]) | st.ip_addresses(v=6).map(str)
PORTS = st.sampled_from([PORT, PORT, PORT, 8001, 80, 65535, 40000])
BYTES = st.sampled_from([0, 0, 1, 2, 100]) | st.integers(0, 2**32 - 1)


def rows_of(addresses: st.SearchStrategy[str]) -> st.SearchStrategy[Row]:
    return st.builds(
        Row,
        addresses,
        addresses,
        st.sampled_from(STATES),
        BYTES,
        BYTES,
        PORTS,
        st.integers(1, 65535),
        st.integers(0, 2**32),
    )


#: Two sockets never have the same ends, but for listeners (SO_REUSEPORT): see the test of a row listed twice.
ROWS = st.lists(rows_of(ADDRESSES_4) | rows_of(ADDRESSES_6), max_size=12, unique_by=lambda row: row.connection)


@settings(deadline=None)
@given(ROWS, st.data())
def test_a_generated_table(rows: list[Row], data: st.DataObject) -> None:
    own_open = data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []
    own_closed = data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []
    text = tables(*rows)
    found = clients(text, PORT, {r.connection for r in own_open}, [r.connection for r in own_closed])

    def held(connection: Connection) -> bool:
        back = Connection(connection.remote, connection.local)
        return any(r.connection == back and r.state in {ESTABLISHED, SYN_SENT, CLOSE_WAIT} for r in rows)

    counted = [
        row
        for row in rows
        if row.port == PORT
        and row.state not in {LISTEN, SYN_SENT, TIME_WAIT}
        and row.connection not in [r.connection for r in own_open]
        and (row.connection not in [r.connection for r in own_closed] or held(row.connection))
    ]
    owed = [max(0, r.sent - (r.state in {FIN_WAIT1, LAST_ACK, CLOSING})) for r in counted]
    connected = [r for r in counted if f"{r.state:02X}" in CONNECTED]
    assert found.connections == len(connected)
    assert found.unacked_bytes == sum(owed)
    assert found.unread_bytes == sum(r.received for r in connected)
    assert len(found.peers) == min(
        PEERS_NAMED, len([1 for r, o in zip(counted, owed, strict=True) if r in connected or o])
    )
    assert set(found.peers) <= {str(r.connection.remote) for r in counted}
    listeners = [r for r in rows if r.state == LISTEN]
    assert listening_ports(text) == {r.port for r in listeners}
    assert listener_inodes(text, PORT) == {r.inode for r in listeners if r.port == PORT}
    assert set(listening_addresses(text, PORT)) == {r.connection.local.host for r in listeners if r.port == PORT}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60) | st.sampled_from(tables(Row("10.0.0.1", "10.0.0.5"))), max_size=4))
def test_nothing_crashes_it(texts: list[bytes]) -> None:
    found = clients(texts, PORT)
    assert found.connections >= 0
    assert found.unacked_bytes >= 0
    listening_addresses(texts, PORT)
    listening_ports(texts)
    listener_inodes(texts, PORT)


@pytest.mark.parametrize("row", [Row("10.0.0.1", "10.0.0.5"), Row("fd00::1", "fd00::5")])
def test_a_row_that_is_cut_short_counts_for_nothing_it_does_not_say(row: Row) -> None:
    table = tables(row)[":" in row.local]
    start = table.index(b"\n") + 1
    for cut in range(start, len(table)):
        assert clients([table[:cut]], PORT).connections in (0, 1)
    assert clients([table[: table.index(b" 01 ") + 21]], PORT).connections == 1


def test_a_big_table() -> None:
    rows = [Row("10.0.0.1", f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", sent=1, port=PORT + i % 2) for i in range(20_000)]
    text = tables(*rows)
    start_s = time.process_time()
    found = clients(text, PORT)
    assert time.process_time() - start_s < 1.0
    assert (found.connections, found.unacked_bytes) == (10_000, 10_000)


def test_many_clients_late_in_a_long_drain() -> None:
    """500 clients, and the connections of a hook's first 4000 reads, held as the reader holds them."""
    rows = [Row("10.0.0.1", f"10.1.{i >> 8}.{i & 255}") for i in range(500)]
    closed = dict.fromkeys(
        Connection(endpoint("127.0.0.1", PORT), endpoint("127.0.0.1", 20_000 + i)) for i in range(4000)
    )
    text = tables(*rows)
    start_s = time.process_time()
    assert clients(text, PORT, (), closed).connections == 500
    assert time.process_time() - start_s < 0.1


# ---- this machine's own table


@contextlib.contextmanager
def connected(
    family: socket.AddressFamily, bind: str, connect: str, connect_family: socket.AddressFamily
) -> Iterator[tuple[int, socket.socket, socket.socket]]:
    with socket.socket(family) as listener, socket.socket(connect_family) as client:
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind((bind, 0))
            listener.listen()
            port = listener.getsockname()[1]
            client.connect((connect, port))
        except OSError as error:
            pytest.skip(f"no such address here: {error}")
        served, _ = listener.accept()
        with served:
            yield port, served, client


def real(port: int, *own: Connection, closed: tuple[Connection, ...] = ()) -> Clients:
    found = procfs.read_tables()
    if found is None:
        pytest.skip("/proc/self/net/tcp cannot be read here")
    return clients(found, port, own, closed)


def soon(what: Clients, port: int, *own: Connection, closed: tuple[Connection, ...] = ()) -> None:
    """The table says so within a second: the kernel's own answers take a moment."""
    end_s = time.monotonic() + 1
    while (found := real(port, *own, closed=closed)) != what and time.monotonic() < end_s:
        time.sleep(0.01)
    assert found == what


def ends(client: socket.socket) -> Connection:
    ours, theirs = client.getsockname(), client.getpeername()
    return Connection(endpoint(theirs[0], theirs[1]), endpoint(ours[0], ours[1]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the table is Linux's")
@pytest.mark.parametrize(
    ("family", "bind", "connect", "connect_family"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET6, "::1", "::1", socket.AF_INET6),
        (socket.AF_INET6, "::", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET6, "::", "::ffff:127.0.0.1", socket.AF_INET6),
    ],
    ids=["IPv4", "IPv6", "IPv4 client of an IPv6 listener", "v4-mapped client"],
)
def test_real_sockets(
    family: socket.AddressFamily, bind: str, connect: str, connect_family: socket.AddressFamily
) -> None:
    with connected(family, bind, connect, connect_family) as (port, served, client):
        connection = ends(client)
        peer = str(connection.remote)
        soon(Clients(1, 0, 0, (peer,)), port)
        assert real(port, connection) == Clients(0, 0, 0)
        found = procfs.read_tables()
        assert found is not None
        assert port in listening_ports(found)
        # Another process may listen on the port at another address of this machine.
        assert bind in listening_addresses(found, port)

        client.sendall(b"x" * 1000)
        soon(Clients(1, 0, 1000, (peer,)), port)
        served.recv(1000)
        soon(Clients(1, 0, 0, (peer,)), port)

        # A slow reader: what does not fit the client's window is not acknowledged.
        served.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                served.send(bytes(1 << 20))
        time.sleep(0.05)
        stuck = real(port)
        assert stuck.connections == 1
        assert stuck.unacked_bytes > 0
        # The engine closes: what it owes is still owed, and the FIN is no byte of it.
        served.close()
        time.sleep(0.05)
        closing = real(port)
        assert closing.connections == 0
        assert closing.unacked_bytes == stuck.unacked_bytes
        assert closing.peers == (peer,)
        client.setblocking(False)
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            with contextlib.suppress(BlockingIOError):
                if not client.recv(1 << 20):
                    break
        soon(Clients(0, 0, 0), port)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the table is Linux's")
def test_a_real_connection_of_ours_that_we_closed() -> None:
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1", socket.AF_INET) as (port, served, client):
        connection = ends(client)
        client.close()
        # CLOSE_WAIT at the listener until it closes too; its FIN counts as one unread byte until it is read.
        soon(Clients(1, 0, 1, (str(connection.remote),)), port)
        assert real(port, closed=(connection,)) == Clients(0, 0, 0)
        assert served.recv(1) == b""
        soon(Clients(1, 0, 0, (str(connection.remote),)), port)


def test_endpoint_is_what_the_table_says() -> None:
    assert Endpoint(bytes([127, 0, 0, 1]), 80) == endpoint("::ffff:127.0.0.1", 80)
