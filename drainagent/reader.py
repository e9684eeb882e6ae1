"""One bounded read of the targets: each page, vLLM's ``/load`` where it is trusted, and the socket table, once."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread

from drainagent.catalogue import SGLANG, VLLM
from drainagent.http_get import NOT_CONNECTED, Budget, Session, shown
from drainagent.page import HalfPage, Page, read_page
from drainagent.reasons import Reason
from drainagent.sockets import Connection, clients, listening_addresses
from drainagent.targets import Target
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault, Reading

#: Bounds on one page: the hook's own, and the retirement protocol's (the user's document).
HOOK_PAGE_BOUND_BYTES = 8 * 1024 * 1024
CHECK_PAGE_BOUND_BYTES = 1024 * 1024
_LOAD_BOUND_BYTES = 64 * 1024
#: Closed connections remembered so that they are not taken for clients while the engine has not noticed.
_REMEMBERED_CONNECTIONS = 4096

#: Reads tcp and tcp6 of the container; None when they cannot be read.
TableReader = Callable[[], Sequence[bytes] | None]


@dataclass
class _Fetch:
    """One target's part of a read: done on a thread of its own where there are several targets."""

    target: Target
    hosts: Sequence[str]
    budget: Budget
    page_bound_bytes: int
    wants_load: bool
    held: list[Connection] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    reading: Reading | None = None
    answered_at: str | None = None

    def run(self) -> None:
        try:
            self.reading = self._read()
        except Exception as error:  # our own mistake must not end the hook: it counts as busy
            detail = shown(f"drainagent failed: {type(error).__name__}: {error}")
            self.reading = Reading(str(self.target.url), Fault(Reason.INTERNAL_ERROR, detail))

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def _read(self) -> Reading:
        url = self.target.url
        refusals: list[Fault] = []
        for host in self.hosts:
            session = Session(url, host, self.budget, self.held.append)
            self.sessions.append(session)
            page = self._page(session)
            if isinstance(page, Fault) and page.reason in NOT_CONNECTED:
                refusals.append(page)
                continue
            self.answered_at = host
            if self.wants_load and isinstance(page, Page) and _is_quiet(page):
                load = self._load(session)
                return Reading(str(url), load) if isinstance(load, Fault) else Reading(str(url), page, load=load)
            return Reading(str(url), page)
        # A refusal says more than an address family that this machine lacks, and our own want ends no hook.
        refusals.sort(key=lambda fault: NOT_CONNECTED.index(fault.reason))
        return Reading(str(url), refusals[0])

    def _page(self, session: Session) -> Page | Fault:
        answer = session.get(self.target.url.path, self.page_bound_bytes)
        if isinstance(answer, Fault):
            if answer.reason is Reason.CONNECTION_RESET and self.target.url.tls and self.target.client_certificate:
                # Python's own TLS 1.3 server breaks off without an alert when the certificate is missing.
                return Fault(Reason.TLS_FAILED, "the engine demands a client certificate")
            if answer.detail == "HTTP status 404" and self.target.engine is SGLANG:
                return replace(answer, detail=f"{answer.detail} (is SGLang started without --enable-metrics?)")
            return answer
        page = read_page(answer.body, self.target.engine, framed=answer.framed)
        if self.budget.is_spent:  # by the parsing
            return Fault(Reason.TIMED_OUT, f"the read did not end within {self.budget.bound_s:.3g} s")
        if isinstance(page, HalfPage):
            return Fault(Reason.PAGE_CUT, f"the page is cut short: {page.why}")
        return page

    def _load(self, session: Session) -> int | Fault | None:
        """vLLM's count of requests in its server; None when it gives none. A fault: the whole read's time was spent."""
        import json

        answer = session.get(VLLM.load_path or "", _LOAD_BOUND_BYTES)
        if isinstance(answer, Fault):
            return answer if answer.reason is Reason.TIMED_OUT else None
        try:
            load = json.loads(answer.body)["server_load"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return load if type(load) is int else None


@dataclass
class Reader:
    """Reads listeners of this network namespace; keeps what it must remember between reads. For one thread."""

    read_tables: TableReader
    page_bound_bytes: int = HOOK_PAGE_BOUND_BYTES
    gauges_only: bool = False
    ignored_peers: Sequence[tuple[bytes, int]] = ()
    _closed: dict[Connection, None] = field(default_factory=dict)
    _unfinished: list[_Fetch] = field(default_factory=list)
    _found_at: dict[ListenerUrl, str] = field(default_factory=dict)

    def read(self, target: Target, bound_s: float) -> Reading:
        """One whole read within ``bound_s`` seconds. Never raises: what goes wrong is the reading's fault."""
        return self.read_all([target], bound_s)[0]

    def read_all(self, targets: Sequence[Target], bound_s: float, *, always_clients: bool = True) -> list[Reading]:
        """Every target at once, inside one bound; then the socket table, once.

        ``always_clients`` off: the table is left out where a gauge above zero has decided already. It costs the kernel
        more than all the rest of a read (8 ms on a machine with 262,144 hash buckets).
        """
        budget = Budget(bound_s)
        hosts = self._hosts(targets)
        fetches = [
            _Fetch(
                target, hosts[target.url], budget, self.page_bound_bytes, target.load_tracking and not self.gauges_only
            )
            for target in targets
        ]
        if len(fetches) == 1:
            fetches[0].run()
        else:
            _run_at_once(fetches, bound_s)
        # The table after the pages, so that a request which came meanwhile is seen, and while our own connections are
        # still open, so that no other socket can have their 4-tuples.
        decided = not always_clients and any(_is_busy(fetch.reading) for fetch in fetches)
        tables = None if self.gauges_only or decided else self._tables()
        held = {connection for fetch in (*fetches, *self._unfinished) for connection in tuple(fetch.held)}
        return [self._finish(fetch, tables, held) for fetch in self._ended(fetches, bound_s)]

    def _ended(self, fetches: Sequence[_Fetch], bound_s: float) -> Sequence[_Fetch]:
        """The same fetches, those that are still on their way replaced by a time-out and kept to be closed later."""
        ended = []
        for fetch in fetches:
            if fetch.reading is None:
                self._unfinished.append(fetch)
                late = Fault(Reason.TIMED_OUT, f"the read did not end within {bound_s:.3g} s")
                ended.append(replace(fetch, reading=Reading(str(fetch.target.url), late), sessions=[], held=[]))
            else:
                ended.append(fetch)
        return ended

    def _finish(self, fetch: _Fetch, tables: Sequence[bytes] | None, held: Collection[Connection]) -> Reading:
        assert fetch.reading is not None  # _ended has seen to it
        found = None
        if tables is not None:
            found = clients(tables, fetch.target.url.port, held, self._closed, self.ignored_peers)
        if fetch.answered_at is not None:
            self._found_at[fetch.target.url] = fetch.answered_at
        elif isinstance(fetch.reading.page, Fault) and fetch.reading.page.reason in NOT_CONNECTED:
            self._found_at.pop(fetch.target.url, None)
        self._release(fetch)
        return replace(fetch.reading, clients=found)

    def _release(self, fetch: _Fetch) -> None:
        fetch.close()
        self._closed.update(dict.fromkeys(fetch.held))
        for late in [one for one in self._unfinished if one.reading is not None]:
            self._unfinished.remove(late)
            self._release(late)
        while len(self._closed) > _REMEMBERED_CONNECTIONS:
            del self._closed[next(iter(self._closed))]

    def _hosts(self, targets: Sequence[Target]) -> dict[ListenerUrl, list[str]]:
        """For each URL its own host, both loopbacks, and where the table says that somebody listens on its port."""
        unknown = any(target.url not in self._found_at for target in targets)
        tables = self._tables() if unknown else None
        hosts = {}
        for url in (target.url for target in targets):
            own = "127.0.0.1" if url.host == "localhost" else url.host
            found = [self._found_at[url]] if url in self._found_at else []
            listening = listening_addresses(tables, url.port) if tables is not None else ()
            specific = [host for host in listening if host not in {"0.0.0.0", "::"}]
            hosts[url] = list(dict.fromkeys([*found, own, "127.0.0.1", "::1", *specific]))
        return hosts

    def _tables(self) -> Sequence[bytes] | None:
        try:
            return self.read_tables()
        except Exception:  # not readable, whatever the cause: never "nobody is connected"
            return None


def _run_at_once(fetches: Sequence[_Fetch], bound_s: float) -> None:
    end_s = time.monotonic() + bound_s
    threads = []
    for fetch in fetches:
        thread = Thread(target=fetch.run, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this user: one after the other, inside the same bound
            fetch.run()
        else:
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))


def _is_busy(reading: Reading | None) -> bool:
    """A gauge counts work, so that the reading is busy whatever the socket table says."""
    page = None if reading is None else reading.page
    return isinstance(page, Page) and any(gauge.sum > 0 for gauge in page.gauges)


def _is_quiet(page: Page) -> bool:
    """No gauge counts work, so that ``/load`` is worth asking (a busy page ends its run of zeros anyway)."""
    return not page.bad_samples and all(gauge.sum == 0 for gauge in page.gauges)


def resolve(host: str, port: int) -> list[str]:
    """A name's addresses, in the resolver's order. socket.gaierror when there are none; takes the resolver's time."""
    return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def listener_answers(url: ListenerUrl, address: str, bound_s: float) -> Fault | None:
    """Whether the listener of another Pod answers at all: None when any HTTP answer begins within ``bound_s``."""
    session = Session(url, address, Budget(bound_s), lambda _: None)
    try:
        answer = session.get(url.path, None)
    finally:
        session.close()
    return answer if isinstance(answer, Fault) else None
