"""The webhooks' HTTPS server: bounds, TLS and its renewal. What is answered is decided elsewhere.

Answers are made in threads, since a large resource takes a second of computing and the loop has other work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from operator_glue.webhook.configuration import INJECT_PATH, VALIDATE_PATH
from operator_glue.webhook.envelope import Answer, NotAReviewError, respond

Decide = Callable[[Mapping[str, Any]], Answer]

#: An update's review holds two objects, and the API server takes bodies of 3 MiB.
MAX_BODY = 8 * 2**20
#: Of a body to come in, once its headers are there.
BODY_S = 5.0
HANDSHAKE_S = 5.0
#: Go's client closes an idle connection after 90 s. Closed by us first, just as a request comes, it would be a Pod
#: without its hook: Go sends no POST twice.
KEEP_ALIVE_S = 150.0
#: From the signal to the end of listening: as long as the API server may still be sent here.
LINGER_S = 5.0
#: For answers that are being made at the end.
SHUTDOWN_S = 5.0
#: Answers that are made at once.
THREADS = 4

_log = logging.getLogger(__name__)


class WebhookServer:
    """Both webhooks, or one. No handshake succeeds before ``use`` gave it a certificate.

    ``decisions``: by path (VALIDATE_PATH, INJECT_PATH). ``seen``: called with path, answer and seconds, for metrics.
    """

    def __init__(
        self, decisions: Mapping[str, Decide], seen: Callable[[str, Answer, float], None] | None = None
    ) -> None:
        unknown = set(decisions) - {VALIDATE_PATH, INJECT_PATH}
        if unknown:
            raise ValueError(f"no webhook is at {', '.join(sorted(unknown))}")
        self._decisions, self._seen = dict(decisions), seen
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="webhook")
        self._current: ssl.SSLContext | None = None
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.minimum_version = ssl.TLSVersion.TLSv1_2
        self._outer.sni_callback = self._choose
        application = web.Application(client_max_size=MAX_BODY)
        for path in decisions:
            application.router.add_post(path, self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=SHUTDOWN_S
        )
        self._listener: asyncio.Server | None = None
        self._is_leaving = False

    def use(self, certificate: str, key: str) -> None:
        """PEM, from the next handshake on; connections that are there stay. ValueError when the two do not fit."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # OpenSSL reads files only, and the root file system is read-only.
        file = os.memfd_create("webhook-certificate")
        try:
            os.write(file, f"{key.strip()}\n{certificate.strip()}\n".encode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
        except ssl.SSLError as error:
            raise ValueError(f"the certificate and its key cannot be served: {error}") from None
        finally:
            os.close(file)
        self._current = context

    @property
    def has_certificate(self) -> bool:
        return self._current is not None

    @property
    def port(self) -> int:
        """That it listens on."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    async def start(self, host: str | None, port: int) -> None:
        """``host`` None: every address. OSError when the port is taken."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = await asyncio.get_running_loop().create_server(
            self._runner.server, host, port, ssl=self._outer, ssl_handshake_timeout=HANDSHAKE_S
        )

    async def stop(self, linger_s: float = LINGER_S) -> None:
        """Serves on for ``linger_s`` and asks each client that comes to go, then closes what is left."""
        self._is_leaving = True
        if self._listener is not None:
            await asyncio.sleep(linger_s)
            self._listener.close()
        await self._runner.cleanup()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _choose(self, connection: Any, _name: str | None, _outer: ssl.SSLContext) -> int | None:
        """OpenSSL calls it for each handshake, with a server name or without."""
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None

    async def _handle(self, request: web.Request) -> web.Response:
        began_s = time.monotonic()
        try:
            body = await asyncio.wait_for(request.read(), BODY_S)
        except asyncio.TimeoutError:
            return self._leaving(web.Response(status=408, text=f"the body took longer than {BODY_S:g} s\n"))
        loop = asyncio.get_running_loop()
        try:
            text, answer = await loop.run_in_executor(self._pool, _answered, body, self._decisions[request.path])
        except NotAReviewError as error:
            return self._leaving(web.Response(status=400, text=f"{error}\n"))
        _note(request.path, answer)
        if self._seen is not None:
            self._seen(request.path, answer, time.monotonic() - began_s)
        return self._leaving(web.Response(body=text, content_type="application/json"))

    def _leaving(self, response: web.Response) -> web.Response:
        if self._is_leaving:
            response.force_close()
        return response


def _answered(body: bytes, decide: Decide) -> tuple[bytes, Answer]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise NotAReviewError("the body is no JSON") from None
    review, answer = respond(document, decide)
    return json.dumps(review).encode(), answer


def _note(path: str, answer: Answer) -> None:
    if answer.mistake is not None:
        _log.error("%s: let pass unseen: %s", path, answer.mistake)
    elif answer.faults:
        _log.info("%s: denied: %s", path, "; ".join(fault.sentence for fault in answer.faults))
    elif answer.said:
        _log.info("%s: %s", path, "; ".join((answer.said, *answer.warnings)))
