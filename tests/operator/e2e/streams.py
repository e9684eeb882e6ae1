"""Clients of a router: streams, one after another in each of several threads, and what became of every one."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, field

#: A stream that says nothing for so long is cut. The engines send a token every 20 ms, real ones on a busy CPU later.
SILENCE_S = 60.0


@dataclass
class Stream:
    """``fault``: None when it came to its end: tokens, a reason to finish and [DONE]. Times are since the epoch."""

    sent_at: float
    tokens: int
    got: int = 0
    ended_at: float = 0.0
    fault: str | None = "it has not ended"

    def __str__(self) -> str:
        got = f"{self.got} of {self.tokens} tokens"
        return f"sent at {self.sent_at:.1f}, {got}, ended at {self.ended_at:.1f}: {self.fault}"


def ask(host: str, port: int, tokens: int, model: str = "m") -> Stream:
    """One stream, to its end."""
    stream = Stream(time.time(), tokens)
    follow(stream, host, port, model)
    return stream


def follow(stream: Stream, host: str, port: int, model: str) -> None:
    body = {"model": model, "prompt": "x" * 40, "max_tokens": stream.tokens, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection(host, port, timeout=SILENCE_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            stream.fault = f"HTTP {answer.status} {answer.read(200)!r}"
            return
        done, error, reason = False, None, None
        for line in answer:
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                done = True
            elif data:
                event = json.loads(data)
                error = error or event.get("error")
                for choice in event.get("choices") or ():
                    stream.got += bool(choice.get("text"))
                    reason = choice.get("finish_reason") or reason
        stream.fault = None
        if error is not None or not done:
            stream.fault = f"{error or 'the stream ended without [DONE]'}"
        elif reason not in ("length", "stop"):  # "abort": an engine that cuts it; None: a router that does
            stream.fault = f"finish_reason {reason}"
        elif stream.got == 0:
            stream.fault = "not one token"
    except (OSError, http.client.HTTPException, ValueError) as error:
        stream.fault = f"{type(error).__name__} {error}"
    finally:
        stream.ended_at = time.time()
        connection.close()


@dataclass
class Load:
    """``clients`` threads, each stream of ``shortest`` to ``longest`` tokens (50 a second)."""

    host: str
    port: int
    clients: int = 8
    shortest: int = 40
    longest: int = 150
    model: str = "m"
    streams: list[Stream] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        for number in range(self.clients):
            thread = threading.Thread(target=self._ask, args=(random.Random(number),), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """No new streams; those that run come to their end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * SILENCE_S)

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def lost(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.fault is not None]

    def _ask(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            stream = Stream(time.time(), chance.randint(self.shortest, self.longest))
            self.streams.append(stream)
            follow(stream, self.host, self.port, self.model)
