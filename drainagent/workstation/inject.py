"""``drainagent inject``: the hook, the agent and the grace into Kubernetes manifests from any source.

The manifest goes to stdout, what was concluded to stderr. Decisions are drainagent.injection's, edits of the text
drainagent.workstation.yaml_edit's.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from drainagent.catalogue import engine_by_name
from drainagent.engine_container import Wanted
from drainagent.injection import Outcome, Request, extra_options, inject_into, remove_from, verify
from drainagent.patch import Change, Path, Remove, apply
from drainagent.podspec import AgentImage, Delivery
from drainagent.text import printable
from drainagent.timeline import MAX_GRACE_S, MIN_GRACE_S
from drainagent.url import parse_url
from drainagent.workloads import WITHOUT_PODS, name_of, objects, places
from drainagent.workstation.yaml_edit import (
    Document,
    MappingNode,
    ScalarNode,
    YamlError,
    edit,
    read_stream,
    to_data,
)

#: name[:tag][@digest], as github.com/distribution/reference writes it.
_REFERENCE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_PORT_RANGE = (1, 65535)


@dataclass
class Result:
    """Each document as it was and as it is to be, what to say line by line, and whether something was left undone."""

    documents: list[tuple[str, str]]
    said: list[str] = field(default_factory=list)
    undone: bool = False
    engines: int = 0

    @property
    def text(self) -> str:
        """The whole stream as it is to be."""
        return "".join(new for _, new in self.documents)


@dataclass
class _Said:
    """What has been said, and what is only counted."""

    lines: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    engines: int = 0
    undone: bool = False
    undone_word: str = "left as it is: "

    def kind(self, found: Mapping[str, Any]) -> None:
        """An object without a Pod template; a kind that is known to hold none is not worth a word."""
        kind = str(found.get("kind") or "")
        if kind and kind not in WITHOUT_PODS:
            self.unknown[printable(f"{kind} {found.get('apiVersion') or ''}".strip())] += 1

    def outcome(self, who: str, outcome: Outcome) -> None:
        self.engines += outcome.has_engine
        if outcome.problem is None:
            self.lines.append(f"{who}: {outcome.said}")
        else:
            self.undone = True
            self.lines.append(f"{who}: {self.undone_word}{outcome.problem}")
        self.lines += [f"  note: {note}" for note in outcome.notes]


def inject_stream(text: str, request: Request) -> Result:
    """Injects into each document of a stream. YamlError when it does not parse."""

    def work(document: Document, data: Any, said: _Said) -> str:
        source = text[document.start : document.end]
        clean, clean_document, clean_data = source, document, data
        removals = list(_removals(data))
        if removals:  # injected anew from what it said before, so that nothing of an older injection is left
            clean, clean_data = edit(source, document, removals), apply(data, removals)
            clean_document = read_stream(clean)[0]
        changes: list[Change] = []
        for (prefix, before), (_, found) in zip(objects(data), objects(clean_data), strict=True):
            for outcome in inject_into(found, request, extra_options(before)):
                said.outcome(_who(prefix, found, outcome, document), outcome)
                changes += _below(prefix, outcome.changes)
        if apply(clean_data, changes) == data:
            return source
        return edit(clean, clean_document, changes)

    return _each(text, work)


def remove_stream(text: str) -> Result:
    """Takes earlier injections out of each document. YamlError when the stream does not parse."""

    def work(document: Document, data: Any, said: _Said) -> str:
        for prefix, found in objects(data):
            for outcome in remove_from(found):
                said.outcome(_who(prefix, found, outcome, document), outcome)
        return edit(text[document.start : document.end], document, list(_removals(data)))

    return _each(text, work)


def verify_stream(text: str, request: Request) -> Result:
    """Says which engines lack their hook. The text is the one given."""

    def work(document: Document, data: Any, said: _Said) -> str:
        said.undone_word = ""
        for prefix, found in objects(data):
            for outcome in verify(found, request):
                said.outcome(_who(prefix, found, outcome, document), outcome)
        return text[document.start : document.end]

    return _each(text, work)


def _each(text: str, work: Callable[[Document, Any, _Said], str]) -> Result:
    """Calls ``work`` on each document that may hold a Pod template; joins what comes back."""
    said = _Said()
    documents: list[tuple[str, str]] = []
    for document in read_stream(text):
        source = text[document.start : document.end]
        documents.append((source, source))
        if document.root is None:
            continue
        if "containers" not in source:  # no Pod template without them: a large ConfigMap or CRD costs nothing more
            said.kind(_top_level(document))
            continue
        try:
            data = to_data(document)
            held = [found for _, found in objects(data) if places(found)]
            for _, found in objects(data):
                if not places(found):
                    said.kind(found)
            if held:
                documents[-1] = (source, work(document, data, said))
        except ValueError as error:  # CannotEdit, or a manifest whose types the API server would refuse too
            said.undone = True
            said.lines.append(f"document at line {document.line}: left as it is: {error}")
    if said.unknown:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(said.unknown.items()))
        said.lines.append(f"not known here to hold Pods, left as they are: {kinds}")
    return Result(documents, said.lines, said.undone, said.engines)


def _removals(data: Any) -> Iterator[Change]:
    for prefix, found in objects(data):
        for outcome in remove_from(found):
            yield from _below(prefix, outcome.changes)


def _below(prefix: Path, changes: Sequence[Change]) -> Iterator[Change]:
    for change in changes:
        path = (*prefix, *change.path)
        yield Remove(path) if isinstance(change, Remove) else type(change)(path, change.value)


def _who(prefix: Path, found: Mapping[str, Any], outcome: Outcome, document: Document) -> str:
    where = f"line {document.line}"
    if prefix:
        where += f", {_dotted(prefix)}"
    if len(places(found)) > 1:
        where += f", {_dotted(outcome.place.path)}"
    return f"{name_of(found)} ({where})"


def _dotted(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _top_level(document: Document) -> dict[str, Any]:
    """The scalars at the top of a document, which cost no more than their number to read."""
    if not isinstance(document.root, MappingNode):
        return {}
    return {
        key.value: value.value
        for key, value in document.root.entries
        if isinstance(key, ScalarNode) and isinstance(value, ScalarNode)
    }


# ---- the command


class BadInputError(click.ClickException):
    """Wrong usage or unreadable input: exit status 2, nothing on stdout."""

    exit_code = 2


def read_input(name: str) -> str:
    """The text of ``-f name``. BadInputError."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(name, "rb") as file:
                data = file.read()
    except OSError as error:
        raise BadInputError(f"-f {name}: {error.strerror}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"-f {name}: byte {error.start + 1} is not UTF-8, and a manifest must be") from None


def agent_image_of(
    delivery: Delivery, reference: str | None, pull_policy: str, pull_secrets: tuple[str, ...]
) -> AgentImage | None:
    """The carrier image by its options; None when the agent is in the engine's. BadInputError."""
    if delivery is Delivery.IN_IMAGE:
        return None
    if not reference:
        raise BadInputError(
            f"--delivery {delivery.value} needs --agent-image REF (or DRAINAGENT_AGENT_IMAGE): an image that the "
            f"cluster cannot pull keeps every Pod from starting, so that none is assumed"
        )
    if len(reference) > 512 or not _REFERENCE.fullmatch(reference):
        raise BadInputError(
            f"--agent-image {reference[:100]!r} is no image reference such as NAME:TAG or NAME@sha256:…"
        )
    for secret in pull_secrets:
        if not _NAME.fullmatch(secret):
            raise BadInputError(f"--agent-image-pull-secret {secret[:100]!r} is no name of a Secret")
    return AgentImage(reference, pull_policy, pull_secrets)


def is_floating(reference: str) -> bool:
    """The tag may name another image tomorrow: none, or latest."""
    tag = reference.rpartition("/")[2].partition(":")[2]
    return "@" not in reference and tag in ("", "latest")


@click.command("inject")
@click.option(
    "-f", "--filename", "names", required=True, multiple=True, metavar="FILE|-", help="The manifests; - is stdin."
)
@click.option("--remove", is_flag=True, help="Take an earlier injection out again: the manifest as it was.")
@click.option("--diff", "show_diff", is_flag=True, help="Print what would change, not the manifest.")
@click.option(
    "--verify", "verify_only", is_flag=True, help="Change nothing; 1 when a hook is missing or its grace not the Pod's."
)
@click.option(
    "--delivery",
    type=click.Choice([item.value for item in Delivery]),
    default=Delivery.INIT_CONTAINER.value,
    show_default=True,
    help="How the agent gets into the engine's container.",
)
@click.option("--agent-image", metavar="REF", envvar="DRAINAGENT_AGENT_IMAGE", help="The image that carries the agent.")
@click.option("--agent-image-pull-policy", type=click.Choice(_PULL_POLICIES), default="IfNotPresent", show_default=True)
@click.option("--agent-image-pull-secret", multiple=True, metavar="NAME", help="Added to imagePullSecrets; repeatable.")
@click.option("--own-python", is_flag=True, help="The agent image carries a Python, for an engine image without one.")
@click.option("--engine", metavar="vllm|sglang", help="What runs where the command line cannot be read.")
@click.option("--container", metavar="NAME", help="The engine's container, where several could be.")
@click.option("--port", type=click.IntRange(*_PORT_RANGE), help="The engine's port where it cannot be read.")
@click.option(
    "--grace",
    type=click.IntRange(MIN_GRACE_S, MAX_GRACE_S),
    metavar="SECONDS",
    help="The least terminationGracePeriodSeconds; a longer one stays. Unset: as the manifest says, else 30.",
)
@click.option("--replace-hook", is_flag=True, help="Put the drain hook in the place of another preStop hook.")
@click.option("--leader", metavar="URL", help="For Pods without a listener: return when this leader's is gone.")
@click.option("--leader-env", metavar="NAME", help="The same, the leader's address in this variable.")
def inject_command(
    names: tuple[str, ...],
    remove: bool,
    show_diff: bool,
    verify_only: bool,
    delivery: str,
    agent_image: str | None,
    agent_image_pull_policy: str,
    agent_image_pull_secret: tuple[str, ...],
    own_python: bool,
    engine: str | None,
    container: str | None,
    port: int | None,
    grace: int | None,
    replace_hook: bool,
    leader: str | None,
    leader_env: str | None,
) -> None:
    """Add the drain hook to Kubernetes manifests.

    Reads manifests (YAML or JSON, several documents, Lists), finds the containers that run vLLM or SGLang by their
    command lines, and gives each Pod template the preStop hook, the agent and an explicit
    terminationGracePeriodSeconds. The manifest goes to stdout, what was concluded and why to stderr. Comments, key
    order and every document without an engine stay as they are. Running it again changes nothing; --remove brings back
    what the manifest said.

    \b
      helm template llama ./chart | drainagent inject -f - --agent-image REF | kubectl apply -f -
      drainagent inject -f llama.yaml --agent-image REF --diff
      drainagent inject -f llama.yaml --verify          # in CI

    A router is never taken for an engine. Where a command cannot be read, it asks for --engine, --container and --port
    instead of guessing; a Pod template with the annotation drainagent.io/inject: "false" is left out.

    \b
    Exit status:
      0  done
      1  something was left undone, or --verify found something missing: named on stderr
      2  wrong usage, or input that cannot be read: nothing on stdout
    """
    if remove and verify_only:
        raise BadInputError("--remove and --verify exclude each other")
    found_engine = engine_by_name(engine) if engine is not None else None
    if engine is not None and found_engine is None:
        raise BadInputError(f"--engine {engine[:100]!r} must be vllm or sglang")
    if leader is not None and leader_env is not None:
        raise BadInputError("--leader and --leader-env exclude each other")
    if len(names) > 1:
        raise BadInputError(f"-f takes one file, and was given {len(names)}: join them with --- in between")
    (name,) = names
    if leader is not None:
        try:
            parse_url(leader)
        except ValueError as error:
            raise BadInputError(f"--leader {error}") from None
    if leader_env is not None and not _VARIABLE.fullmatch(leader_env):
        raise BadInputError(f"--leader-env {leader_env[:100]!r} is no name of a variable")
    leader_words = ("--leader", leader) if leader else ("--leader-env", leader_env) if leader_env else ()
    how = Delivery(delivery)
    image = (
        None
        if remove or verify_only
        else agent_image_of(how, agent_image, agent_image_pull_policy, agent_image_pull_secret)
    )
    request = Request(how, image, Wanted(found_engine, container, port), grace, replace_hook, leader_words, own_python)
    text = read_input(name)
    try:
        if remove:
            result = remove_stream(text)
        elif verify_only:
            result = verify_stream(text, request)
        else:
            result = inject_stream(text, request)
    except YamlError as error:
        raise BadInputError(f"-f {name}: {error}") from None
    if image is not None and is_floating(image.reference):
        result.said.append(
            f"note: --agent-image {image.reference} can name another image tomorrow; pin a tag or a digest"
        )
    if not result.engines:
        result.said.append(f"no engine was found{'' if container is None else f' in a container named {container}'}")
        # A gate that passes on nothing hides that what should have fed it failed.
        result.undone |= verify_only or (not remove and (container, engine, port) != (None, None, None))
    if show_diff:
        write_out("".join(_diff(result.documents, name)))
    elif not verify_only:
        write_out(result.text)
    for line in result.said:
        click.echo(printable(line), err=True)
    sys.exit(1 if result.undone else 0)


def write_out(text: str) -> None:
    """To standard output, whole. BadInputError."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it once more at its end
        raise BadInputError(f"standard output: {error.strerror}; what was written is not whole") from None


def _diff(documents: Sequence[tuple[str, str]], name: str) -> Iterator[str]:
    """A unified diff of the stream. Compared document by document: 10,000 lines at once take difflib seconds."""
    old: list[str] = []
    new: list[str] = []
    blocks: list[tuple[str, int, int, int, int]] = []
    for before, after in documents:
        lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, *lines)
        same = [("equal", 0, len(lines[0]), 0, len(lines[1]))]
        for tag, old_1, old_2, new_1, new_2 in same if before == after else matcher.get_opcodes():
            block = (tag, old_1 + len(old), old_2 + len(old), new_1 + len(new), new_2 + len(new))
            if blocks and blocks[-1][0] == tag:
                block = (tag, blocks[-1][1], block[2], blocks[-1][3], block[4])
                blocks.pop()
            blocks.append(block)
        old += lines[0]
        new += lines[1]
    if old == new:
        return
    whole: difflib.SequenceMatcher[str] = difflib.SequenceMatcher(None, (), ())
    whole.opcodes = blocks  # type: ignore[attr-defined]  # what get_opcodes has found, here piece by piece
    yield from (f"--- {name}\n", f"+++ {name} (changed)\n")
    for group in whole.get_grouped_opcodes():
        (_, old_1, _, new_1, _), (_, _, old_2, _, new_2) = group[0], group[-1]
        yield f"@@ -{_range(old_1, old_2)} +{_range(new_1, new_2)} @@\n"
        for tag, from_1, to_1, from_2, to_2 in group:
            if tag == "equal":
                yield from (_line(" ", line) for line in old[from_1:to_1])
            else:
                yield from (_line("-", line) for line in old[from_1:to_1])
                yield from (_line("+", line) for line in new[from_2:to_2])


def _range(start: int, end: int) -> str:
    """A hunk's lines as unified diffs number them: an empty one begins with the line before."""
    return f"{start + (end > start)},{end - start}"


def _line(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
