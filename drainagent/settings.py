"""The hook's options to what the hook does. Pure: a wrong value gives one sentence and a safe value, never an end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from drainagent import number
from drainagent.catalogue import ENGINES, Engine, engine_by_name
from drainagent.hook_options import HookOptions, shown
from drainagent.sockets import endpoint
from drainagent.timeline import LAST_READ_BEFORE_KILL_S, MAX_GRACE_S, MIN_GRACE_S, SETTLE_S, timeline
from drainagent.url import ListenerUrl, parse_url

_MAX_API_SERVERS = 1024

_T = TypeVar("_T")
_S = TypeVar("_S")


@dataclass(frozen=True)
class HookSettings:
    """What the hook does.

    ``engine`` None: both catalogues. ``urls`` empty: discovery, as in ``check``. ``grace_s`` None: no deadline of its
    own. ``load_tracking`` and ``api_servers`` None: as the engine's command line says. ``watches_leader`` without a
    ``leader``: it was named wrongly, so that the follower waits as long as it can.
    """

    engine: Engine | None = None
    urls: tuple[ListenerUrl, ...] = ()
    url_was_wrong: bool = False
    grace_s: float | None = None
    settle_s: float = SETTLE_S
    gauges_only: bool = False
    load_tracking: bool | None = None
    api_servers: int | None = None
    ignored_peers: tuple[tuple[bytes, int], ...] = ()
    watches_leader: bool = False
    leader: ListenerUrl | None = None
    termination_log: bool = False
    log_json: bool = False


def hook_settings(
    options: HookOptions, env: Mapping[str, str], is_own_address: Callable[[str], bool]
) -> tuple[HookSettings, tuple[str, ...]]:
    """The settings, and a sentence for each wrong value (its field, the value and the bound)."""
    wrong: list[str] = []
    grace_s = _take(wrong, _read_grace, options.grace or "", None)
    settle_s = _take(wrong, _read_settle, options.settle, SETTLE_S)
    if grace_s is not None:
        _judge_times(wrong, grace_s, settle_s)
    urls = [_take(wrong, lambda text: read_own_url(text, is_own_address), text, None) for text in options.urls]
    peers = [_take(wrong, read_network, text, None) for text in options.ignore_peers]
    settings = HookSettings(
        engine=_take(wrong, read_engine, options.engine, None),
        urls=tuple(url for url in urls if url is not None),
        url_was_wrong=None in urls,
        grace_s=grace_s,
        settle_s=settle_s,
        gauges_only=options.gauges_only,
        load_tracking=options.load_tracking,
        api_servers=_take(wrong, read_api_servers, options.api_servers, None),
        ignored_peers=tuple(peer for peer in peers if peer is not None),
        watches_leader=options.leader is not None or options.leader_env is not None,
        termination_log=options.termination_log,
        log_json=_take(wrong, _read_log_format, options.log_format, False),
    )
    if settings.watches_leader:
        leader = _take(wrong, lambda _: _read_leader(options, settings, env), "", None)
        settings = replace(settings, leader=leader)
    return settings, tuple(wrong)


def _take(wrong: list[str], read: Callable[[str], _T], text: str | None, safe: _S) -> _T | _S:
    """The value, or the safe one when the option was not given or, with its sentence added to ``wrong``, is wrong."""
    if text is None:
        return safe
    try:
        return read(text)
    except ValueError as error:
        wrong.append(str(error))
        return safe


def _judge_times(wrong: list[str], grace_s: float, settle_s: float) -> None:
    if not MIN_GRACE_S <= grace_s <= MAX_GRACE_S:
        schedule = timeline(grace_s, settle_s)
        wrong.append(
            f"--grace {grace_s:g} is outside {MIN_GRACE_S} to {MAX_GRACE_S} seconds; "
            f"it is used as it is: no read after {max(0.0, schedule.no_read_after_s or 0):g} s, "
            f"back by {schedule.back_by_s:g} s"
        )
    last_read_s = grace_s - LAST_READ_BEFORE_KILL_S
    if settle_s > SETTLE_S and settle_s >= last_read_s:
        wrong.append(
            f"--settle {settle_s:g} leaves no time for a read: none starts after G - 5, {last_read_s:g} s here"
        )


def read_engine(text: str) -> Engine:
    """``vllm`` or ``sglang`` in any case; ValueError says which there are."""
    engine = engine_by_name(text)
    if engine is None:
        known = " or ".join(known.option for known in ENGINES)
        raise ValueError(f"--engine {shown(text)} must be {known}")
    return engine


def read_own_url(text: str, is_own_address: Callable[[str], bool]) -> ListenerUrl:
    """A URL on one of the Pod's own addresses: the agent opens no connection elsewhere."""
    try:
        url = parse_url(text)
    except ValueError as error:
        raise ValueError(f"--url {error}") from None
    if url.host == "localhost":
        return url
    if not _is_address(url.host):
        raise ValueError(f"--url {shown(text)} names a host; it must be localhost or an IP address of this Pod")
    if not is_own_address(url.host):
        raise ValueError(f"--url {shown(text)}: {url.host} is no address of this Pod")
    return url


def read_network(text: str) -> tuple[bytes, int]:
    """An address or a CIDR as (address bytes, prefix length)."""
    import ipaddress

    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"--ignore-peer {shown(text)} is no address and no CIDR such as 10.0.0.0/8") from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return mapped.packed, network.prefixlen - 96
    return network.network_address.packed, network.prefixlen


def read_api_servers(text: str) -> int:
    """vLLM's --api-server-count as the user gives it."""
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and 1 <= int(text) <= _MAX_API_SERVERS):
        raise ValueError(f"--api-servers {shown(text)} must be a whole number from 1 to {_MAX_API_SERVERS}")
    return int(text)


def _read_grace(text: str) -> float:
    value = number(text)
    if value is None:
        raise ValueError(
            f"--grace {f'{shown(text)} is no number' if text else 'is missing'}; it must be the Pod's "
            f"terminationGracePeriodSeconds, {MIN_GRACE_S} to {MAX_GRACE_S}. "
            f"Without it the hook waits until the replica is idle"
        )
    return value


def _read_settle(text: str) -> float:
    value = number(text)
    if value is None or not SETTLE_S <= value <= MAX_GRACE_S:
        raise ValueError(
            f"--settle {shown(text)} must be a number from {SETTLE_S:g} to {MAX_GRACE_S} seconds; {SETTLE_S:g} is used"
        )
    return value


def _read_log_format(text: str) -> bool:
    if text not in {"text", "json"}:
        raise ValueError(f"--log-format {shown(text)} must be text or json; text is used")
    return text == "json"


def _read_leader(options: HookOptions, settings: HookSettings, env: Mapping[str, str]) -> ListenerUrl:
    if options.leader is not None:
        try:
            return parse_url(options.leader)
        except ValueError as error:
            raise ValueError(f"--leader {error}; the leader cannot be watched") from None
    name = options.leader_env or ""
    address = env.get(name, "")
    if not address:
        raise ValueError(
            f"--leader-env {shown(name)}: the container's environment has no such variable, or it is empty; "
            f"the leader cannot be watched"
        )
    if "://" not in address:
        # The address alone, as LeaderWorkerSet gives it: the leader listens as this member's own engine would.
        own = settings.urls[0] if settings.urls else None
        scheme = own.scheme if own is not None else "http"
        port = own.port if own is not None else (settings.engine or ENGINES[0]).port
        path = own.path if own is not None else "/metrics"
        host = f"[{address}]" if address.count(":") > 1 and not address.startswith("[") else address
        has_port = host.rpartition("]")[2].count(":") == 1
        address = f"{scheme}://{host}" + ("" if has_port else f":{port}") + path
    try:
        return parse_url(address)
    except ValueError as error:
        raise ValueError(f"--leader-env {name} holds {error}; the leader cannot be watched") from None


def _is_address(host: str) -> bool:
    try:
        endpoint(host, 0)
    except ValueError:
        return False
    return True
