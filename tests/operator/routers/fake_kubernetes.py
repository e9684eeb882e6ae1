"""A fake API server with a fixed list of Pods and fake engines behind them, for real routers in tests."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Events of an engine's stream, and the time between two.
EVENTS, EVENT_GAP_S = 20, 0.1


def ready_pod(name: str, ip: str, labels: dict[str, str]) -> dict[str, Any]:
    """As the API server shows it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "models", "uid": name, "resourceVersion": "1", "labels": labels},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # a router that is stopped
            super().handle()

    def answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], host: str, port: int) -> Iterator[int]:
    server = ThreadingHTTPServer((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.socket.close()


@contextlib.contextmanager
def api_server(pods: list[dict[str, Any]], asked: list[str]) -> Iterator[int]:
    """Lists ``pods``; no watch ever hears of a change. ``asked``: gets the paths. Yields its port on 127.0.0.1."""
    over = threading.Event()

    class Handler(_Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if "watch=true" in self.path:
                self.stream("application/json")
                over.wait()
            else:
                self.answer(
                    {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods}
                )

    with _serving(Handler, "127.0.0.1", 0) as port:
        try:
            yield port
        finally:
            over.set()


@contextlib.contextmanager
def engine(host: str, port: int, seen: list[tuple[str, str | None]]) -> Iterator[int]:
    """An engine that answers every question with a stream. ``seen``: gets each question's path and Authorization."""

    class Handler(_Handler):
        def do_GET(self) -> None:
            if self.path.startswith("/v1/models"):
                self.answer({"object": "list", "data": [{"id": "m", "object": "model"}]})
            else:
                self.answer({"model_path": "m", "served_model_name": "m", "is_generation": True})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append((self.path, self.headers.get("Authorization")))
            if not json.loads(body).get("stream"):
                message = {"role": "assistant", "content": "x"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self.answer({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
                return
            self.stream("text/event-stream")
            for _ in range(EVENTS):
                self.chunk(b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')
                time.sleep(EVENT_GAP_S)
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    with _serving(Handler, host, port) as bound:
        yield bound
