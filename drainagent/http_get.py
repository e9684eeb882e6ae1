"""One GET of one listener, bounded as a whole: connect, TLS, header and body together.

h11 (httpx's own HTTP/1.1) speaks the protocol; the socket is the standard library's. httpx and httpcore bound each
socket operation and not the whole, so that a page which drips never ends, and importing them costs a hook more than all
of its reads. No proxy and no TLS variable of the environment is looked at, and no certificate is verified: the
addresses are the Pod's own.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

from drainagent import __version__
from drainagent.reasons import Reason
from drainagent.sockets import Connection, endpoint
from drainagent.text import printable
from drainagent.url import ListenerUrl
from drainagent.verdict import Fault

if TYPE_CHECKING:
    import ssl

_RECEIVE_BYTES = 64 * 1024
#: A header larger than this is no engine's.
_MAX_HEADER_BYTES = 100 * 1024
#: More interim answers than this is no engine's either.
_MAX_INTERIM_ANSWERS = 100
_SHOWN_CHARS = 300

_HEADERS = [
    ("Accept", "text/plain; version=0.0.4, */*;q=0.1"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", f"drainagent/{__version__}"),
]

#: No connection was made, what decides first: our own want (of descriptors, memory, ports), a refusal, no way there.
NOT_CONNECTED = (Reason.OUT_OF_RESOURCES, Reason.CONNECTION_REFUSED, Reason.UNREACHABLE)
_OUR_WANT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
_RESET = {errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN}


class Budget:
    """What is left of one read's total time, on a clock that nobody sets back."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self._end = time.monotonic() + bound_s

    @property
    def is_spent(self) -> bool:
        return time.monotonic() >= self._end

    def left_s(self) -> float:
        """TimeoutError when nothing is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


@dataclass(frozen=True)
class Answer:
    """A whole body. ``framed``: HTTP said where it ends."""

    body: bytes
    framed: bool


class _FaultError(Exception):
    """Carries a fault out of a read."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.fault = Fault(reason, shown(detail))


class Session:
    """GETs from one listener at one address, over one connection where the listener keeps it.

    ``opened`` is told each connection's ends as soon as it stands. ``close`` when the answers have been judged.
    """

    def __init__(self, url: ListenerUrl, address: str, budget: Budget, opened: Callable[[Connection], None]) -> None:
        self._url, self._address, self._budget, self._opened = url, address, budget, opened
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)

    def get(self, path: str, bound_bytes: int | None) -> Answer | Fault:
        """GET ``path``, with at most one redirect to the same scheme, host and port.

        ``bound_bytes``: the largest body; None: the status alone is asked for, the body is not read.
        """
        try:
            for _ in range(2):
                found = self._get(path, bound_bytes)
                if not isinstance(found, str):
                    return found
                path = found
            return Fault(Reason.HTTP_ERROR, "redirected more than once")
        except _FaultError as error:
            return error.fault
        except TimeoutError:
            return Fault(Reason.TIMED_OUT, f"the read did not end within {self._budget.bound_s:.3g} s")
        except h11.RemoteProtocolError as error:
            if "complete message body" in str(error):
                return Fault(Reason.PAGE_CUT, "the page is cut short: the connection ended inside the body")
            return Fault(Reason.PROTOCOL_ERROR, shown(f"the answer is not HTTP: {error}"))
        except OSError as error:
            if self._url.tls and _is_of_tls(error):
                # TLS 1.3 tells of a missing client certificate only after the handshake.
                return Fault(Reason.TLS_FAILED, shown(f"TLS failed: {error}"))
            return Fault(Reason.CONNECTION_RESET, shown(f"the connection broke off: {error}"))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _get(self, path: str, bound_bytes: int | None) -> Answer | Fault | str:
        """The answer, or the path that a redirect leads to."""
        if self._socket is None:
            self._connect()
        self._send(h11.Request(method="GET", target=path, headers=[("Host", self._url.authority), *_HEADERS]))
        self._send(h11.EndOfMessage())
        response = self._response()
        if 300 <= response.status_code < 400:
            location = _header(response, b"location")
            if location is None:
                return Fault(Reason.HTTP_ERROR, f"HTTP status {response.status_code} without a Location")
            moved = _same_listener(self._url, path, location)
            if moved is None:
                return Fault(Reason.HTTP_ERROR, f"HTTP status {response.status_code}: redirected away from {self._url}")
            self.close()
            return moved
        if response.status_code >= 400:
            return Fault(Reason.HTTP_ERROR, f"HTTP status {response.status_code}")
        if bound_bytes is None:
            return Answer(b"", framed=False)
        return self._body(response, bound_bytes)

    def _connect(self) -> None:
        try:
            self._socket = socket.create_connection((self._address, self._url.port), self._budget.left_s())
            ours, theirs = self._socket.getsockname(), self._socket.getpeername()
        except TimeoutError:
            raise
        except OSError as error:
            self.close()
            raise _not_connected(self._url, self._address, error) from error
        self._opened(Connection(endpoint(theirs[0], theirs[1]), endpoint(ours[0], ours[1])))
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)
        if not self._url.tls:
            return
        self._socket.settimeout(self._budget.left_s())
        try:
            self._socket = _unverified().wrap_socket(self._socket, server_hostname=self._url.host)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise _FaultError(Reason.TLS_FAILED, f"the TLS handshake failed: {error}") from error

    def _send(self, event: h11.Request | h11.EndOfMessage) -> None:
        assert self._socket is not None
        data = self._http.send(event)
        if data:
            self._socket.settimeout(self._budget.left_s())
            # A listener that broke off may have said why first: TLS 1.3 refuses a client without a certificate after
            # the handshake. Receiving brings that, or fails alike.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(data)

    def _next_event(self) -> object:
        assert self._socket is not None
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                self._budget.left_s()
                return event
            self._socket.settimeout(self._budget.left_s())
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise _FaultError(Reason.CONNECTION_RESET, "the listener closed the connection without an answer")
            self._http.receive_data(data)

    def _response(self) -> h11.Response:
        for _ in range(_MAX_INTERIM_ANSWERS):
            event = self._next_event()
            if isinstance(event, h11.Response):
                return event
        raise _FaultError(Reason.PROTOCOL_ERROR, f"more than {_MAX_INTERIM_ANSWERS} interim answers and no answer")

    def _body(self, response: h11.Response, bound_bytes: int) -> Answer | Fault:
        if response.status_code == 206:
            return Fault(Reason.PAGE_CUT, "the page is cut short: HTTP status 206 although nothing asked for a part")
        encoding = (_header(response, b"content-encoding") or "identity").strip().lower()
        if encoding != "identity":
            detail = f"the body is encoded as {encoding!r} although identity was asked for"
            return Fault(Reason.BAD_ENCODING, shown(detail))
        chunks: list[bytes] = []
        size = 0
        while isinstance(event := self._next_event(), h11.Data):
            size += len(event.data)
            if size > bound_bytes:
                return Fault(Reason.PAGE_TOO_LARGE, f"the page is larger than the bound of {bound_bytes} bytes")
            chunks.append(bytes(event.data))
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()
        length, coding = _header(response, b"content-length"), _header(response, b"transfer-encoding")
        return Answer(b"".join(chunks), response.status_code == 204 or length is not None or coding is not None)


def shown(text: str) -> str:
    """Text that a listener may have chosen, short enough to be said and without control characters."""
    text = printable(text[: _SHOWN_CHARS + 1])
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _not_connected(url: ListenerUrl, address: str, error: OSError) -> _FaultError:
    why = f"no connection to {url}: {error}"
    if error.errno == errno.ECONNREFUSED:
        return _FaultError(Reason.CONNECTION_REFUSED, f"nothing listens at {url}")
    if error.errno in _RESET:
        return _FaultError(Reason.CONNECTION_RESET, why)
    if error.errno == errno.ETIMEDOUT:
        return _FaultError(Reason.TIMED_OUT, why)
    # On IPv6 this number says that the machine has none, on IPv4 that no port is left.
    if error.errno in _OUR_WANT and not (error.errno == errno.EADDRNOTAVAIL and ":" in address):
        return _FaultError(Reason.OUT_OF_RESOURCES, why)
    return _FaultError(Reason.UNREACHABLE, why)


def _header(response: h11.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key == name), None)


def _same_listener(url: ListenerUrl, path: str, location: str) -> str | None:
    """The path that a redirect leads to, when it stays with the same scheme, host and port."""
    from urllib.parse import urljoin

    from drainagent.url import parse_url

    try:
        moved = parse_url(urljoin(f"{url.scheme}://{url.authority}{path}", location))
    except ValueError:
        return None
    return moved.path if (moved.scheme, moved.host, moved.port) == (url.scheme, url.host, url.port) else None


def _is_of_tls(error: OSError) -> bool:
    import ssl

    return isinstance(error, ssl.SSLError)


def _unverified() -> ssl.SSLContext:
    import ssl  # 9 ms that a hook of a plain listener need not spend

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # An old engine's TLS is better read than refused: nothing secret is sent.
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context
