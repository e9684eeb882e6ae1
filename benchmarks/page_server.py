"""Serves page files from memory, one a port, in a process of its own so that its CPU is not counted.

``page_server.py PAGE[,PAGE...]``: a listener on 127.0.0.1 for each, the port as the first word of a line each. After
that a line a request: the port, the number of the request on that port, and the moment just before its answer was sent
(CLOCK_MONOTONIC, which all processes share).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time


def _serve(listener: socket.socket, page: bytes) -> None:
    port = listener.getsockname()[1]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
    answer = head % len(page) + page
    requests = 0
    while True:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while chunk := connection.recv(65536):
                asked += chunk
                if b"\r\n\r\n" not in asked:
                    continue
                requests += 1
                sent = time.monotonic()
                connection.sendall(answer)
                os.write(1, b"%d %d %.6f\n" % (port, requests, sent))
                if b"connection: close" in asked.lower():
                    break
                asked = b""


def main() -> None:
    pages: dict[str, bytes] = {}
    for path in sys.argv[1].split(","):
        if path not in pages:
            with open(path, "rb") as file:
                pages[path] = file.read()
        listener = socket.create_server(("127.0.0.1", 0))
        os.write(1, b"%d\n" % listener.getsockname()[1])
        threading.Thread(target=_serve, args=(listener, pages[path]), daemon=True).start()
    sys.stdin.read()  # until whoever started this is gone


if __name__ == "__main__":
    main()
