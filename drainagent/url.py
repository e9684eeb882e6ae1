"""A listener's URL, as options and annotations give it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_METRICS_PATH = "/metrics"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_URL_CHARS = 2048


@dataclass(frozen=True)
class ListenerUrl:
    """``host``: a literal address without brackets, or a name. ``path`` begins with a slash and holds the query."""

    scheme: str
    host: str
    port: int
    path: str = DEFAULT_METRICS_PATH

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def tls(self) -> bool:
        return self.scheme == "https"


def parse_url(text: str) -> ListenerUrl:
    """ValueError with one sentence that names the value and what is wrong with it."""
    shown = repr(text if len(text) <= 200 else text[:200] + "…")
    if len(text) > _MAX_URL_CHARS or any(ord(char) <= 32 or ord(char) >= 127 for char in text):
        raise ValueError(f"{shown} is no URL: it must be printable ASCII of at most {_MAX_URL_CHARS} characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{shown} is no URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{shown} must begin with http:// or https://")
    if not host:
        raise ValueError(f"{shown} names no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{shown} must carry no user name or password")
    if port == 0:
        raise ValueError(f"{shown} has port 0; a port is 1 to 65535")
    path = parts.path or DEFAULT_METRICS_PATH
    return ListenerUrl(
        parts.scheme,
        host.partition("%")[0],
        _DEFAULT_PORTS[parts.scheme] if port is None else port,
        path + (f"?{parts.query}" if parts.query else ""),
    )
