"""Which listeners to read, and what their command lines say of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from drainagent.catalogue import ENGINES, VLLM, Engine
from drainagent.engine_argv import EngineCommand
from drainagent.sockets import listening_ports
from drainagent.url import ListenerUrl

_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}


@dataclass(frozen=True)
class Target:
    """A listener to read and what its command line says of it.

    ``engine``: whose gauges are expected, None when not known. ``load_tracking``: ``/load`` can be trusted (the flag is
    on and there is one API server). ``engines_expected``: engines its page should show, None when not known.
    ``client_certificate``: the engine refuses a client without one, which we are.
    """

    url: ListenerUrl
    engine: Engine | None = None
    load_tracking: bool = False
    engines_expected: int | None = None
    client_certificate: bool = False


@dataclass(frozen=True)
class Overrides:
    """What the user says of vLLM instead of its command line; None: as the command line says."""

    load_tracking: bool | None = None
    api_servers: int | None = None


class EngineProcess(Protocol):
    """A running process and its command line, as procfs finds it."""

    @property
    def pid(self) -> int: ...

    @property
    def command(self) -> EngineCommand: ...


@dataclass(frozen=True)
class Discovery:
    """The listeners found, and sentences that say from what they were concluded."""

    targets: tuple[Target, ...]
    conclusions: tuple[str, ...]


def targets_for(
    urls: Sequence[ListenerUrl], engine: Engine | None, processes: Sequence[EngineProcess], overrides: Overrides
) -> tuple[Target, ...]:
    """The given URLs, each with what the command line of the process on its port says."""
    return tuple(
        _target(
            url,
            engine,
            next((one.command for one in processes if url.port in one.command.ports), None),
            overrides,
        )
        for url in urls
    )


def discover(
    engine: Engine | None, processes: Sequence[EngineProcess], tables: Sequence[bytes], overrides: Overrides
) -> Discovery:
    """The engines' own listeners by their command lines; else the engines' usual ports, where somebody listens."""
    targets: dict[ListenerUrl, Target] = {}
    conclusions: list[str] = []
    for process in processes:
        command = process.command
        if engine is not None and command.engine is not engine:
            continue
        name = f"process {process.pid} is {command.engine.name}"
        if command.uds is not None:
            conclusions.append(f"{name} on the Unix socket {command.uds}, which is not read")
            continue
        if command.no_listener is not None:
            conclusions.append(f"{name} without a listener: {command.no_listener}")
            continue
        for port in command.ports:
            host = _EVERY_INTERFACE.get(command.host, command.host)
            url = ListenerUrl("https" if command.tls else "http", host, port)
            if url not in targets:
                conclusions.append(f"{name}, listening on port {port}{' with TLS' if command.tls else ''}")
                targets[url] = _target(url, command.engine, command, overrides)
    if not targets:
        ports = listening_ports(tables)
        for known in ENGINES if engine is None else (engine,):
            if known.port in ports:
                url = ListenerUrl("http", "127.0.0.1", known.port)
                conclusions.append(
                    f"no engine's process is seen, but port {known.port}, {known.name}'s usual one, is open"
                )
                targets[url] = _target(url, engine, None, overrides)
    return Discovery(tuple(targets.values()), tuple(conclusions))


def _target(url: ListenerUrl, engine: Engine | None, command: EngineCommand | None, overrides: Overrides) -> Target:
    engine = engine if engine is not None else command.engine if command is not None else None
    tracking = overrides.load_tracking
    servers = overrides.api_servers
    if command is not None:
        tracking = command.load_tracking if tracking is None else tracking
        servers = command.api_server_count if servers is None else servers
    return Target(
        url,
        engine,
        load_tracking=engine in {VLLM, None} and tracking is True and servers == 1,
        engines_expected=command.engines if command is not None else None,
        client_certificate=command is not None and command.client_certificate,
    )
