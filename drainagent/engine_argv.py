"""An engine's command line, read as the engine itself reads it: listener, metrics, data parallel, kind. Pure.

Sources, by release (drainagent.engine_flags names them): vLLM's vllm/utils/argparse_utils.py (spellings),
entrypoints/cli/serve.py (API servers, headless, balance), entrypoints/launchers/launcher.py (listener),
engine/arg_utils.py and v1/engine/core_client.py (which engines a page shows), config/kv_transfer.py; SGLang's
launch_server.py, cli/serve.py, srt/server_args.py, srt/arg_groups/{parallel,serving}_hook.py,
srt/entrypoints/{engine,http_server}.py. tests/engines/test_argv_agreement.py runs both engines' own parsers.

A command line that the engine would refuse is still read, as far as it goes: no engine runs with it. What decides
something here and could not be read is in ``EngineCommand.unread``, next to the engine's default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from drainagent.catalogue import SGLANG, VLLM, Engine
from drainagent.engine_start import OUTPUT, NotAnEngine, Start, find_start, is_wrapper


class Kind(Enum):
    """What the engine serves. HALF: one half of a prefill/decode pair, which one is not said."""

    SERVER = "server"
    PREFILL = "prefill"
    DECODE = "decode"
    HALF = "prefill or decode"
    UNREADABLE = "unreadable"


class Unread(NamedTuple):
    """A flag whose value could not be read, and why."""

    flag: str
    why: str

    def __str__(self) -> str:
        return f"{self.flag}: {self.why}".replace(OUTPUT, "$(…)")


@dataclass(frozen=True)
class EngineCommand:
    """What one engine's command line decides.

    ``host`` is the address bound ("0.0.0.0" for vLLM's default, every interface). ``port`` is the first of ``ports``;
    there are several where each data-parallel rank has its own listener. ``no_listener`` says why no HTTP requests
    arrive on them, None when they do. ``moved``: the flags of the listener that were given (--host, --port, --uds).
    ``client_certificate``: TLS, and a client without a certificate is refused. ``data_parallel_size_local``: as given.
    ``api_server_count``: processes that answer HTTP, 0 for none. ``engines``: those its metrics page shows, each with
    its own ``engine.engine_label``. ``balance``: vLLM's data-parallel load balancing ("internal", "external", "hybrid",
    "multi-port"). ``shutdown_timeout``: seconds, vLLM only.
    """

    engine: Engine
    host: str
    port: int
    ports: tuple[int, ...]
    no_listener: str | None
    uds: str | None
    moved: tuple[str, ...]
    tls: bool
    client_certificate: bool
    metrics: bool
    load_tracking: bool
    kind: Kind
    balance: str
    data_parallel_size: int
    data_parallel_size_local: int | None
    api_server_count: int
    engines: int
    node_rank: int
    shutdown_timeout: int | None
    unread: tuple[Unread, ...]

    @property
    def asks_for_tls(self) -> bool:
        """TLS, or a flag that turns it on with a value that is set where it runs."""
        return self.tls or any(item.flag in ("--ssl-keyfile", "--ssl-certfile") for item in self.unread)


def read_command(
    argv: Sequence[str], env: Mapping[str, str] | None = None, *, expand: bool = True
) -> EngineCommand | NotAnEngine:
    """Read a whole command line. ``env``: the literal environment; both engines read some of their settings from it.

    It is a container's command and args: $(VAR) is replaced, and shells and wrappers are looked into. With ``expand``
    off it is a running process's: the kubelet has replaced all, and the engine in a shell is a process of its own.
    """
    environment = dict(env or {})
    words = [expand_variables(word, environment) for word in argv] if expand else list(argv)
    program = words[0].rpartition("/")[2] if words else ""
    if not expand and (is_wrapper(program)):
        return NotAnEngine(f"{program} is no engine: what it starts is another process")
    start = find_start(words, environment)
    return start if isinstance(start, NotAnEngine) else _read(start)


def read_arguments(
    engine: Engine, args: Sequence[str], env: Mapping[str, str] | None = None, *, expand: bool = True
) -> EngineCommand:
    """Read the arguments alone, where the image's entry point starts the engine (``vllm serve``, ``sglang serve``)."""
    environment = dict(env or {})
    words = [expand_variables(word, environment) for word in args] if expand else list(args)
    return _read(Start(engine, words, environment))


def given_flags(engine: Engine, args: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, str | bool]:
    """The flags among an engine's arguments, by the name that drainagent.engine_flags gives each first.

    The last value of each as text, or whether the switch is on; "" where it is there and lacks its value.
    """
    environment = dict(env or {})
    words = [expand_variables(word, environment) for word in args]
    given = _Given(engine, shell=False)
    given.scan(list(_vllm_words(words)) if engine is VLLM else words)
    return {**dict.fromkeys(given.broken, ""), **given.values, **given.switches}


def expand_variables(text: str, env: Mapping[str, str]) -> str:
    """$(VAR) and $$ as the kubelet replaces them (k8s.io/kubernetes/third_party/forked/golang/expansion)."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else env.get(name, match[0])

    return re.sub(r"\$(?:\$|\(([^)]{0,256})\))", replace, text)


# ---- from arguments to flags, as argparse splits them


class _Flag(NamedTuple):
    name: str
    values: str  # "0", "1", "?", "*", "+"
    on: bool


@cache
def _flags(engine: Engine) -> dict[str, _Flag]:
    """Every spelling of every flag of the engine's server."""
    from drainagent.engine_flags import SGLANG_FLAGS, VLLM_FLAGS

    table = {}
    for line in (VLLM_FLAGS if engine is VLLM else SGLANG_FLAGS).splitlines():
        values, *spellings = line.split()
        for spelling in spellings:
            table[spelling] = _Flag(spellings[0], values, not spelling.startswith("--no-") or len(spellings) == 1)
    return table


def _meanings(word: str, table: Mapping[str, _Flag]) -> list[tuple[_Flag, str | None]] | None:
    """The flags that a word can mean, each with the value it carries; None when it is a value, empty when unknown.

    argparse.ArgumentParser._parse_optional and _get_option_tuples of Python 3.11.
    """
    if not word.startswith("-") or word == "-":
        return None
    if word in table:
        return [(table[word], None)]
    name, equals, value = word.partition("=")
    if equals and name in table:
        return [(table[name], value)]
    if word.startswith("--"):
        found = [(flag, value if equals else None) for spelling, flag in table.items() if spelling.startswith(name)]
    else:
        found = [(flag, None) for spelling, flag in table.items() if spelling.startswith(word)]
        if word[:2] in table:
            found.append((table[word[:2]], word[2:]))
    if not found and (" " in word or re.match(r"-\d+$|-\d*\.\d+$", word)):
        return None
    return list(dict.fromkeys(found))


@dataclass
class _Given:
    """The flags that were given, the last of each, and what could not be read of the flags that are asked for."""

    engine: Engine
    shell: bool
    positionals: int = 0
    values: dict[str, str] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)

    def scan(self, words: Sequence[str]) -> None:
        table = _flags(self.engine)
        index = alone = 0
        while index < len(words) and words[index] != "--":
            word = words[index]
            index += 1
            meanings = _meanings(word, table) or []
            if not meanings and not word.startswith("-"):
                alone += 1  # the first of `vllm serve` is the model
                if alone > self.positionals and self._is_open(word):
                    self.unread.append(Unread(word, "what it holds where it runs can be flags"))
            if len(meanings) > 1:
                self.broken.update({flag.name: f"{word} can mean several flags" for flag, _ in meanings})
            if len(meanings) != 1:  # a flag of another release, or the model: its values are skipped as the model is
                continue
            flag, value = meanings[0]
            most = {"0": 0, "1": 1, "?": 1}.get(flag.values, len(words))
            values = [] if value is None else [value]
            while value is None and index < len(words) and len(values) < most:
                if words[index] == "--" or _meanings(words[index], table) is not None:
                    break
                values.append(words[index])
                index += 1
            if flag.values == "0" and not values:
                self.switches[flag.name] = flag.on
            elif values and flag.values != "0":
                self.values[flag.name] = values[-1]
            elif flag.values in "01+":
                self.broken[flag.name] = f"{word} takes {'a' if flag.values != '0' else 'no'} value"

    def _is_open(self, value: str) -> bool:
        return "$(" in value or (self.shell and "$" in value)

    def _check(self, flag: str) -> None:
        if flag in self.broken:
            self.unread.append(Unread(flag, self.broken.pop(flag)))

    def text(self, flag: str) -> str | None:
        self._check(flag)
        value = self.values.get(flag)
        if value is not None and self._is_open(value):
            self.unread.append(Unread(flag, f"{value} is set where it runs"))
            return None
        # vLLM: optional_type in engine/arg_utils.py
        return None if self.engine is VLLM and value in ("", "None") else value

    def number(self, flag: str, default: int) -> int:
        value = self.number_given(flag)
        return default if value is None else value

    def number_given(self, flag: str) -> int | None:
        self._check(flag)
        value = self.values.get(flag)
        try:
            return None if value is None else int(value)
        except ValueError:
            why = "is set where it runs" if self._is_open(value or "") else "is no number"
            self.unread.append(Unread(flag, f"{value!r} {why}"))
            return None

    def port(self, flag: str, default: int) -> int:
        value = self.number(flag, default)
        if 0 < value < 65536:
            return value
        self.unread.append(Unread(flag, "port 0 is chosen where it runs" if value == 0 else f"{value} is no port"))
        return default

    def switch(self, flag: str) -> bool:
        self._check(flag)
        return self.switches.get(flag, False)

    def moved(self) -> tuple[str, ...]:
        return tuple(flag for flag in ("--host", "--port", "--uds") if flag in self.values)


def _read(start: Start) -> EngineCommand:
    given = _Given(start.engine, start.shell, int(start.engine is VLLM and start.serve))
    # Both engines look for the word itself: --config=FILE and an abbreviation are taken and ignored.
    has_file = "--config" in start.arguments
    if has_file:
        given.unread.append(Unread("--config", "flags that are not on the command line can stand in that file"))
    if start.engine is VLLM:
        given.scan(list(_vllm_words(start.arguments)))
        return _read_vllm(given, start, has_file)
    given.scan(start.arguments)
    return _read_sglang(given, start, has_file)


# ---- vLLM


#: No flag of vLLM is nested as deep. Interpreters differ in how deep they can write JSON.
_MAX_DOTTED_DEPTH = 100


def _vllm_words(arguments: Sequence[str]) -> Iterator[str]:
    """FlexibleArgumentParser.parse_args: underscores, and dotted flags put together as JSON at the end."""
    import json

    dotted: dict[str, dict[str, Any]] = {}
    too_deep: set[str] = set()
    words = iter(re.sub(r"^--[^.=]*", lambda match: match[0].replace("_", "-"), word) for word in arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("-") or "." not in name:
            yield word
            continue
        value = value if equals else next(words, "")
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        flag, *path = name.split(".")
        if len(path) > _MAX_DOTTED_DEPTH:
            too_deep.add(flag)
            continue
        _merge(dotted.setdefault(flag, {}), path, _json_or_text(value))
    for flag in too_deep:  # without a value
        yield flag
    for flag, config in dotted.items():
        if flag not in too_deep:
            yield flag
            with suppress(RecursionError):  # of a value given as JSON; then the flag has none
                yield json.dumps(config)


def _json_or_text(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _merge(config: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = config.get(key)
        config[key] = config = inner if isinstance(inner, dict) else {}
    last = config.get(path[-1])
    if isinstance(last, dict) and isinstance(value, dict):
        for key, item in value.items():
            _merge(last, [key], item)
    elif isinstance(last, list) and isinstance(value, list):
        last += value
    else:
        config[path[-1]] = value


def _read_vllm(given: _Given, start: Start, has_file: bool) -> EngineCommand:
    host, uds, port = given.text("--host"), given.text("--uds"), given.port("--port", VLLM.port)
    size, local = given.number("--data-parallel-size", 1), given.number_given("--data-parallel-size-local")
    external = given.switch("--data-parallel-external-lb") or given.number_given("--data-parallel-rank") is not None
    hybrid, multi_port = (
        given.switch("--data-parallel-hybrid-lb"),
        given.switch("--data-parallel-multi-port-external-lb"),
    )
    headless = given.switch("--headless")
    starts_late = given.number_given("--data-parallel-start-rank") is not None
    balance = "multi-port" if multi_port else "external" if external else "hybrid" if hybrid else "internal"
    if balance == "internal" and starts_late and local is not None and not headless:
        balance = "hybrid"
    if not start.serve and balance == "multi-port":
        balance = "internal"  # only `vllm serve` has the supervisor

    # vllm/envs.py. Another value than a number ends the engine at its start.
    rust = start.env.get("VLLM_USE_RUST_FRONTEND", "0").strip() not in ("", "0")
    api_servers = given.number_given("--api-server-count")
    grpc = start.serve and given.switch("--grpc")
    if not start.serve or balance == "multi-port":  # one in each listener's process
        api_servers = 1
    elif api_servers is None:
        api_servers = 1 if rust or balance == "external" else (local or 1) if hybrid or starts_late else size
    if rust or given.switch("--enable-elastic-ep"):
        api_servers = min(api_servers, 1)
    if start.serve and (grpc or (headless and balance != "multi-port")):
        api_servers = 0
    api_servers = max(api_servers, 0)

    last = port + (max(local or 1, 1) if balance == "multi-port" else 1)
    ports = tuple(range(port, min(last, 65536)))
    no_listener = None
    if grpc:
        no_listener = f"--grpc serves gRPC on port {port}, no HTTP"
    elif api_servers == 0:
        no_listener = "--headless or no API server: the head node serves"
    elif uds:
        no_listener = f"it listens on the Unix socket {uds} only"

    tls = bool(given.text("--ssl-keyfile")) | bool(given.text("--ssl-certfile"))
    kind = _vllm_kind(given)
    if kind is Kind.SERVER:
        kind = Kind.HALF if balance != "internal" else Kind.UNREADABLE if has_file else kind
    return EngineCommand(
        engine=VLLM,
        host=host or "0.0.0.0",
        port=port,
        ports=ports,
        no_listener=no_listener,
        uds=uds,
        moved=given.moved(),
        tls=tls,
        client_certificate=tls and given.number("--ssl-cert-reqs", 0) == 2,
        metrics=not given.switch("--disable-log-stats"),
        load_tracking=given.switch("--enable-server-load-tracking"),
        kind=kind,
        balance=balance,
        data_parallel_size=size,
        data_parallel_size_local=local,
        api_server_count=api_servers,
        engines=_vllm_engines(given, balance, size, local) if api_servers else 0,
        node_rank=given.number("--node-rank", 0),
        shutdown_timeout=given.number("--shutdown-timeout", 0),
        unread=tuple(given.unread),
    )


def _vllm_engines(given: _Given, balance: str, size: int, local: int | None) -> int:
    """MPClient in core_client.py: all engines, remote ones too, unless an outer balancer picks among Pods."""
    if balance in ("multi-port", "external"):
        return 1
    if balance == "internal":
        return size
    nodes = given.number("--nnodes", 1)
    if local is None and nodes > 1:  # EngineArgs.create_engine_config
        local = size // nodes
    return max(local or 1, 1)


#: Connectors by what they do with the role kv_both: move KV to another engine, or keep it for this one.
_MOVES_KV = re.compile(r"Nixl.*|MooncakeConnector.*|P2pNccl.*|MoRIIO.*")
_KEEPS_KV = re.compile(
    r"Example.*|SharedStorage.*|LMCache.*|Offloading.*|SimpleCPUOffload.*|FlexKV.*|HF3FS.*|HiSparse.*|DecodeBench.*"
    r"|MooncakeStore.*"
)


def _vllm_kind(given: _Given) -> Kind:
    import json

    text = given.text("--kv-transfer-config")
    if text is None:
        return Kind.UNREADABLE if any(item.flag == "--kv-transfer-config" for item in given.unread) else Kind.SERVER
    # 80m, 4G: numbers that only vLLM reads (_expand_json_human_readable_numbers), outside of strings.
    plain = re.sub(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kKmMgGtT]\b', lambda match: match[1] or "0", text)
    try:
        kind = _kv_kind(json.loads(plain))
    except (ValueError, RecursionError):
        kind = Kind.UNREADABLE
    if kind is Kind.UNREADABLE:
        given.unread.append(Unread("--kv-transfer-config", "no KV configuration that says what this engine does"))
    return kind


def _kv_kind(config: Any) -> Kind:
    if not isinstance(config, dict):
        return Kind.UNREADABLE
    role, connector = config.get("kv_role"), config.get("kv_connector")
    if role == "kv_producer":
        return Kind.PREFILL
    if role == "kv_consumer":
        return Kind.DECODE
    if role is None and connector is None:
        return Kind.SERVER
    if role != "kv_both" or not isinstance(connector, str):
        return Kind.UNREADABLE
    if _MOVES_KV.fullmatch(connector):
        return Kind.HALF
    if connector != "MultiConnector":
        return Kind.SERVER if _KEEPS_KV.fullmatch(connector) else Kind.UNREADABLE
    extra = config.get("kv_connector_extra_config")
    children = extra.get("connectors") if isinstance(extra, dict) else None
    if not isinstance(children, list) or not children:
        return Kind.UNREADABLE
    kinds = {_kv_kind(child) for child in children} - {Kind.SERVER}
    halves = kinds - {Kind.UNREADABLE}
    if len(halves) == 1:
        return halves.pop()
    return Kind.HALF if halves else Kind.UNREADABLE if kinds else Kind.SERVER


# ---- SGLang


def _read_sglang(given: _Given, start: Start, has_file: bool) -> EngineCommand:
    port, rank, nodes = given.port("--port", SGLANG.port), given.number("--node-rank", 0), given.number("--nnodes", 1)
    replicas, groups = given.number("--dp-size", 1), given.number("--attn-dp-size", 1)
    if given.switch("--enable-dp-attention") and groups == 1:  # handle_deprecated_dp_attention
        replicas, groups = 1, replicas
    size = replicas * groups
    engines = size
    if nodes > 1:  # the first rank of each group exports its gauges, on its own node's page (_calculate_rank_ranges)
        ranks = given.number("--tp-size", 1)
        sharing = max(nodes // max(given.number("--pp-size", 1), 1), 1)
        width, here = max(ranks // max(groups, 1), 1), max(ranks // sharing, 1)
        firsts = range(0, min(ranks, 65536), width)
        engines = replicas * sum(first // here == rank % sharing for first in firsts)

    ports: tuple[int, ...] = (port,)
    if start.env.get("SGLANG_RUST_SERVER", "").lower() in ("true", "1", "yes", "y") and groups > 1:
        ports = tuple(range(port, min(port + max(engines, 1), 65536)))
    workers = given.number("--tokenizer-worker-num", 1)
    no_listener = None
    if given.switch("--smg-grpc-mode") or given.switch("--grpc-mode"):
        no_listener, workers = "--smg-grpc-mode serves gRPC, no HTTP but a sidecar's metrics", 0
    elif rank >= 1:
        no_listener, workers = f"node rank {rank}: its listener answers health checks only, rank 0 serves", 0

    mode = given.text("--disaggregation-mode")
    kind = {None: Kind.SERVER, "null": Kind.SERVER, "prefill": Kind.PREFILL, "decode": Kind.DECODE}.get(mode)
    if kind is None:
        given.unread.append(Unread("--disaggregation-mode", f"{mode!r} is neither null, prefill nor decode"))
    elif mode is None and (has_file or any(item.flag == "--disaggregation-mode" for item in given.unread)):
        kind = Kind.UNREADABLE
    host = given.text("--host")
    return EngineCommand(
        engine=SGLANG,
        host="127.0.0.1" if host is None else host,
        port=port,
        ports=ports,
        no_listener=no_listener,
        uds=None,
        moved=given.moved(),
        tls=bool(given.text("--ssl-keyfile")) | bool(given.text("--ssl-certfile")),
        client_certificate=False,
        metrics=given.switch("--enable-metrics"),
        load_tracking=False,
        kind=kind or Kind.UNREADABLE,
        balance="internal",
        data_parallel_size=size,
        data_parallel_size_local=None,
        api_server_count=workers,
        engines=engines,
        node_rank=rank,
        shutdown_timeout=None,
        unread=tuple(given.unread),
    )
