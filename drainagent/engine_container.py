"""Which container of a Pod template runs the engine, and where it listens. Pure.

The command-line reader decides (drainagent.engine_argv). Nothing is guessed: where it cannot be read, the answer is
what to say instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainagent.catalogue import VLLM, Engine
from drainagent.engine_argv import EngineCommand, expand_variables, read_arguments, read_command
from drainagent.engine_start import UNKNOWN_VARIABLES, Known, NotAnEngine

#: Images whose entry point is the engine's server, so that their args are its flags: by the last part of the image's
#: name. Sources: vLLM's docker/Dockerfile* (ENTRYPOINT ["vllm", "serve"], earlier the module), and LMCache's.
#: lmsysorg/sglang has no such entry point: its args are a whole command.
_SERVING_IMAGES = re.compile(r"vllm-(openai|cpu|rocm|tpu|xpu|neuron|hpu)\b.*", re.IGNORECASE)
_ENGINE_WORD = re.compile(r"vllm|sglang", re.IGNORECASE)
#: An engine's start, somewhere in a command's arguments.
_ENGINE_START = re.compile(r"(^|[\s/;&|])(vllm|sglang)(\s+serve\b|$)|vllm\.entrypoints|sglang\.launch_server")
_ROUTER_WORD = re.compile(r"router|gateway|production-stack|epp|scheduler", re.IGNORECASE)

#: The first releases of vLLM with --enable-server-load-tracking (vllm-project/vllm pull request 13950, March 2025) and
#: with --shutdown-timeout. An older one does not start with them.
LOAD_TRACKING_SINCE = (0, 8)
SHUTDOWN_TIMEOUT_SINCE = (0, 20)

#: Flags that decide where the engine listens: one that cannot be read leaves the port open.
_LISTENER_FLAGS = {"--port", "--uds", "--config"}


@dataclass(frozen=True)
class Wanted:
    """What the user says of the engine where its command line cannot be read; where it can, that counts.

    With ``container`` too, what is said against that container's command line is refused.
    """

    engine: Engine | None = None
    container: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class EngineContainer:
    """A container that runs an engine. ``index`` in spec.containers; ``how`` it was found, a phrase.

    ``command`` None: not read, the user named engine and port. ``ports``: its HTTP listeners.
    """

    index: int
    name: str
    engine: Engine
    ports: tuple[int, ...]
    tls: bool
    how: str
    command: EngineCommand | None = None


@dataclass(frozen=True)
class NoEngine:
    """No container runs an engine; ``why`` has a phrase for each container."""

    why: str


@dataclass(frozen=True)
class Unsure:
    """An engine may run here, and what is missing to say so; a sentence that names the way out."""

    why: str


def find_engine(template: Mapping[str, Any], wanted: Wanted) -> EngineContainer | NoEngine | Unsure:
    """The engine's container of a Pod template."""
    containers = [item if isinstance(item, Mapping) else {} for item in template["spec"]["containers"]]
    names = [str(item.get("name", "")) for item in containers]
    if wanted.container is not None:
        if wanted.container not in names:
            return NoEngine(f"it has no container {wanted.container}")
        indices = [names.index(wanted.container)]
    else:
        indices = list(range(len(containers)))
    found = {index: _read(containers[index], wanted) for index in indices}
    engines = {index: item for index, item in found.items() if isinstance(item, EngineCommand)}
    unsure = {index: item for index, item in found.items() if isinstance(item, Unsure)}
    if len(engines) > 1:
        both = " and ".join(f"{names[index]} ({item.engine.name})" for index, item in engines.items())
        return Unsure(f"containers {both} both start an engine; --container NAME says which one is to be drained")
    if len(engines) == 1 and not unsure:
        ((index, command),) = engines.items()
        return _listening(index, names[index], command, _how(containers[index]), wanted)
    if len(unsure) == 1 and not engines:
        ((index, why),) = unsure.items()
        if wanted.engine is not None and wanted.port is not None and not why.why.startswith(_REFUSED):
            return EngineContainer(
                index, names[index], wanted.engine, (wanted.port,), False, "as --engine and --port say"
            )
    if unsure:
        also = [f"container {names[index]} starts {item.engine.name}" for index, item in engines.items()]
        return Unsure("; ".join([*also, *(f"container {names[index]}: {item.why}" for index, item in unsure.items())]))
    each = [f"{names[index]}: {item.why}" for index, item in found.items() if isinstance(item, NoEngine)]
    return NoEngine("; ".join(each))


#: How an ``Unsure`` begins that no option resolves.
_REFUSED = "refused: "


def _read(container: Mapping[str, Any], wanted: Wanted) -> EngineCommand | NoEngine | Unsure:
    command, args, env = words(container.get("command")), words(container.get("args")), literal_env(container)
    image = image_name(container)
    if command or not _SERVING_IMAGES.fullmatch(image) or _ROUTER_WORD.search(image):
        read = read_command([*command, *args], env)
    else:
        read = read_command(args, env)  # some images of that name are built with an entry point that passes it on
        if isinstance(read, NotAnEngine):
            read = read_arguments(VLLM, args, env)
    if isinstance(read, EngineCommand):
        if wanted.container is not None and wanted.engine not in (None, read.engine):
            assert wanted.engine is not None
            return Unsure(f"{_REFUSED}it starts {read.engine.name}, and --engine says {wanted.engine.name}")
        return read
    if read.known is Known.ROUTER_WITH_WORKERS:
        return Unsure(
            f"{_REFUSED}{read.why}, where no drain of one engine can be told from the other's; run the router "
            f"(sglang_router.launch_router) and the engines (sglang.launch_server) in Pods of their own"
        )
    if read.known is Known.NO_ENGINE:
        return NoEngine(read.why)
    asked = wanted.container is not None and wanted.engine is not None
    if asked or (_mentions_engine(image, command, args) and not _ROUTER_WORD.search(image)):
        missing = [flag for flag, value in (("--engine", wanted.engine), ("--port", wanted.port)) if value is None]
        way_out = f"{' and '.join(missing)} must say what it runs" if missing else "it cannot be read"
        return Unsure(
            f"{read.why}; {way_out}, with --container where that is not true of other Pods in the input "
            f'(annotation {SKIP_ANNOTATION}: "false" leaves a Pod out)'
        )
    return NoEngine(read.why)


#: On a Pod template: "false" (or the words meshes take) keeps inject away from it.
SKIP_ANNOTATION = "drainagent.io/inject"
SKIP_WORDS = frozenset({"false", "disabled", "no", "off"})


def _mentions_engine(image: str, command: Sequence[str], args: Sequence[str]) -> bool:
    if any(_ENGINE_WORD.search(text) for text in (image, *command, *args[:1])):
        return True
    return any(_ENGINE_START.search(text) for text in args)


def _how(container: Mapping[str, Any]) -> str:
    if words(container.get("command")):
        return "by its command line"
    if isinstance(read_command(words(container.get("args")), literal_env(container)), EngineCommand):
        return "by its args"
    return f"by the entry point of image {image_name(container)} and its args"


def _listening(index: int, name: str, command: EngineCommand, how: str, wanted: Wanted) -> EngineContainer | Unsure:
    unread = {item.flag: item for item in command.unread}
    # A word that is open where it runs can hold any flag.
    opened = [flag for flag in sorted(unread) if flag in _LISTENER_FLAGS or not flag.startswith("-")]
    open_flags = [str(unread[flag]) for flag in opened]
    given = "--port" in command.moved and "--port" not in unread  # on the command line, which wins over a file
    ports: tuple[int, ...] = command.ports
    if open_flags and not (given and opened == ["--config"]):
        if wanted.port is None:
            return Unsure(
                f"container {name} starts {command.engine.name} on a port that cannot be read "
                f"({'; '.join(open_flags)}); --port must say it"
            )
        ports = (wanted.port,)
    elif wanted.container is not None and wanted.port not in (None, *ports):
        return Unsure(f"container {name} listens on port {command.port}, and --port says {wanted.port}")
    return EngineContainer(index, name, command.engine, ports, command.asks_for_tls, how, replace(command, ports=ports))


def words(value: Any) -> list[str]:
    """A container's command or args as text; the API server refuses anything but strings, and says so better."""
    return [item if isinstance(item, str) else str(item) for item in value] if isinstance(value, list) else []


def literal_env(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables whose value stands in the container itself; one that comes from elsewhere stays ``$(NAME)``."""
    env: dict[str, str] = {UNKNOWN_VARIABLES: ""} if container.get("envFrom") else {}
    for item in container.get("env") or ():
        name = str(item.get("name")) if isinstance(item, Mapping) else ""
        if name and item.get("valueFrom"):
            env[name] = f"$({name})"
        elif name:
            env[name] = expand_variables(str(item.get("value") or ""), env)
    return env


def image_name(container: Mapping[str, Any]) -> str:
    """The last part of the image's name, without registry, tag and digest."""
    return str(container.get("image") or "").partition("@")[0].rpartition("/")[2].partition(":")[0]


def image_release(container: Mapping[str, Any]) -> tuple[int, int] | None:
    """vLLM's (major, minor) by the tag of an image that bears its name, such as vllm-openai:v0.8.5; else None."""
    if "vllm" not in image_name(container).lower():
        return None
    tag = str(container.get("image") or "").partition("@")[0].rpartition("/")[2].partition(":")[2]
    number = r"v?(\d{1,4})\.(\d{1,4})(?!\d)"
    match = re.search(rf"vllm[-_]?{number}", tag) or re.match(number, tag)
    return (int(match[1]), int(match[2])) if match else None
