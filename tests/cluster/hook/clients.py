"""Clients of a Pod: those of tests/engines, through the Pod's own address."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Sequence

from load import CONNECT_S, READ_S, Answer, Client, ClientPlan, Request, Target

from hook.manifests import TOKENS_PER_S


def epoch_s(monotonic_s: float) -> float:
    return monotonic_s + time.time() - time.monotonic()


def stream(from_s: float, to_s: float) -> ClientPlan:
    """One streamed completion on a connection of its own, in seconds from the delete."""
    return ClientPlan((Request(from_s, tokens=round((to_s - from_s) * TOKENS_PER_S)),))


class PodClient(Client):
    """A client of an address that is not this machine's own."""

    def __init__(self, plan: ClientPlan, host: str, port: int, delete_at: float) -> None:
        super().__init__(plan, Target(port), delete_at)
        self._host = host

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._sock = socket.create_connection((self._host, self.target.port), CONNECT_S)
            self._sock.settimeout(READ_S)
            self._connection = http.client.HTTPConnection(self._host, self.target.port)
            self._connection.sock = self._sock
        return self._connection


class PodLoad:
    """Several clients of one address. ``delete_at`` on the monotonic clock."""

    def __init__(self, plans: Sequence[ClientPlan], host: str, port: int, delete_at: float) -> None:
        self._clients = [PodClient(plan, host, port, delete_at) for plan in plans]
        for client in self._clients:
            client.start()

    def finish(self, within_s: float) -> list[Answer]:
        """What came of every request, once all have ended; what runs longer is given up."""
        end = time.monotonic() + within_s
        for client in self._clients:
            client.join(max(0.0, end - time.monotonic()))
        for client in self._clients:
            client.stop()
            client.join(5)
        return [answer for client in self._clients for answer in client.answers]
