"""The hook's options: one table for its help and completion (click) and for its own reading of them. Pure.

click ends a command whose arguments are wrong, and the hook must go on. Importing it also costs more than the reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HookOption:
    """One option. ``metavar`` None: a flag, ``--no-`` and the name turns it off where ``negatable``."""

    name: str
    field: str
    help: str
    metavar: str | None = None
    repeatable: bool = False
    negatable: bool = False


HOOK_OPTIONS = (
    HookOption("--engine", "engine", "Whose gauges are expected. Unset: by the page.", "vllm|sglang"),
    HookOption("--url", "urls", "A metrics page of this Pod; repeatable. Unset: found.", "URL", repeatable=True),
    HookOption(
        "--grace",
        "grace",
        "The Pod's terminationGracePeriodSeconds, 15 to 3600. Without it: no deadline, exit status 2.",
        "SECONDS",
    ),
    HookOption("--settle", "settle", "How long to keep serving before the first read; 5 or more.", "SECONDS"),
    HookOption("--gauges-only", "gauges_only", "The bare rule: two idle reads of the gauges, nothing else."),
    HookOption(
        "--load-tracking",
        "load_tracking",
        "vLLM runs with --enable-server-load-tracking (without it /load is always 0). Unset: by its command line.",
        negatable=True,
    ),
    HookOption("--api-servers", "api_servers", "How many API servers vLLM runs. Unset: by its command line.", "N"),
    HookOption(
        "--ignore-peer",
        "ignore_peers",
        "Connections from here are no requests; repeatable.",
        "CIDR",
        repeatable=True,
    ),
    HookOption("--leader", "leader", "Follower: return when this listener of the leader is gone.", "URL"),
    HookOption(
        "--leader-env", "leader_env", "The same, the leader's address in this variable of the container.", "NAME"
    ),
    HookOption(
        "--termination-log", "termination_log", "Write the outcome to the container's termination message file too."
    ),
    HookOption("--log-format", "log_format", "Lines for people (the default), or JSON objects.", "text|json"),
)


@dataclass(frozen=True)
class HookOptions:
    """The hook's command line as it was given: words, not yet values."""

    engine: str | None = None
    urls: tuple[str, ...] = ()
    grace: str | None = None
    settle: str | None = None
    gauges_only: bool = False
    load_tracking: bool | None = None
    api_servers: str | None = None
    ignore_peers: tuple[str, ...] = ()
    leader: str | None = None
    leader_env: str | None = None
    termination_log: bool = False
    log_format: str | None = None


def read_hook_arguments(arguments: Sequence[str]) -> tuple[HookOptions, tuple[str, ...]]:
    """The options, and a sentence for each word that is none or lacks its value; of an option given twice, the last."""
    named = {option.name: option for option in HOOK_OPTIONS}
    values: dict[str, object] = {}
    wrong: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        turned_off = named.get("--" + name.removeprefix("--no-")) if name.startswith("--no-") else None
        option = turned_off if turned_off is not None and turned_off.negatable else named.get(name)
        if option is None:
            wrong.append(f"{shown(word)} is no option of the hook, and no option takes it")
        elif option.metavar is None:
            if equals:
                wrong.append(f"{name} takes no value, and was given {shown(value)}; it is left out")
            else:
                values[option.field] = option is not turned_off
        elif not equals and (not words or words[0].partition("=")[0] in named):
            wrong.append(f"{name} needs a value ({option.metavar}) and has none")
        else:
            value = value if equals else words.pop(0)
            before = values.get(option.field, ())
            values[option.field] = (*before, value) if option.repeatable and isinstance(before, tuple) else value
    return HookOptions(**values), tuple(wrong)  # type: ignore[arg-type]


def shown(text: str) -> str:
    """A value as it was given, quoted, and cut where it is long."""
    return repr(text if len(text) <= 200 else text[:200] + "…")
