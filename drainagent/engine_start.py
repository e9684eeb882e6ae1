"""From a whole command line to the engine it starts and that engine's own arguments. Pure.

A container's command may go through Python, a wrapper (env, tini, numactl, ...) or a shell string; routers and other
programs are told apart by name. Sources: as in drainagent.engine_argv.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from drainagent.catalogue import SGLANG, VLLM, Engine


class Known(Enum):
    """What is known of a command that is not read as an engine's."""

    NOTHING = "it may start an engine, in a way that cannot be read"
    NO_ENGINE = "it starts something else, a router or a benchmark"
    ROUTER_WITH_WORKERS = "it starts a router and the engines behind it in one container"


@dataclass(frozen=True)
class NotAnEngine:
    """The command starts no engine that is known here, or not in a way that can be read; ``why`` is a sentence."""

    why: str
    known: Known = Known.NOTHING


@dataclass
class Start:
    """The engine's own arguments. ``serve``: by the engine's command, not by its module (vLLM's two differ)."""

    engine: Engine
    arguments: list[str]
    env: Mapping[str, str]
    serve: bool = True
    shell: bool = False


_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_LONGEST_WORD = 128 * 1024
_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHELL_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_MODULES = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.launchers.api_server.entry": VLLM,
    "sglang.launch_server": SGLANG,
}
_VLLM_MAIN = "vllm.entrypoints.cli.main"
#: Modules and scripts of the engines' packages that only measure.
_BENCHMARKS = re.compile(r"(vllm|sglang)\.bench.*|bench(mark)?_\w+\.py")
#: Programs that are run from the engines' images beside them.
_BESIDE_ENGINES = re.compile(r"lmcache[\w.]*|sleep|.*mini_lb|dynamo\.frontend|toy_proxy_server\.py")
_ROUTER_WITH_WORKERS = "sglang_router.launch_server"
_ROUTERS = re.compile(r"(vllm|sglang|sgl|llm-d|semantic)[-_.](router|model[-_]gateway).*|smg|amg")

#: Programs that run the command they are given: how many arguments of their own they take, and their options with a
#: value. Other options are skipped.
_WRAPPERS = {
    name: (int(own), options)
    for own, name, *options in map(
        str.split,
        """0 env -u --unset -C --chdir
        0 exec -a
        0 tini -p -e
        0 dumb-init -r --rewrite
        0 nohup
        0 setsid
        0 nice -n --adjustment
        0 stdbuf -i -o -e
        1 taskset
        1 timeout -k -s --kill-after --signal
        1 gosu
        0 numactl -i -p -P -w -N -m -C --interleave --preferred --membind --cpunodebind --physcpubind
        0 opentelemetry-instrument
        0 standard-supervisor""".splitlines(),
    )
}


def is_wrapper(program: str) -> bool:
    """The program runs the command it is given, so that the engine is (or becomes) another process."""
    return program in _SHELLS or program in _WRAPPERS


def find_start(words: Sequence[str], env: Mapping[str, str], shell: bool = False) -> Start | NotAnEngine:
    """The engine that ``words`` start. ``shell``: the words stand in a shell string."""
    while words and (program := words[0].rpartition("/")[2]) in _WRAPPERS:
        words, given = _unwrapped(program, words[1:])
        env = {**env, **given}
    if not words:
        return NotAnEngine("no command: the image's entry point decides what starts")
    program, rest = words[0].rpartition("/")[2], list(words[1:])
    if program.startswith(("VLLM::", "sglang::")):
        return NotAnEngine(f"{words[0].strip()} is a process that an engine started")
    if program in _SHELLS:
        return NotAnEngine("a shell in a shell is not read") if shell else _find_in_shell(program, rest, env)
    if _PYTHON.fullmatch(program):
        program, rest = _python_program(rest)
    program = "vllm" if program == _VLLM_MAIN else program
    if program in _MODULES:
        return Start(_MODULES[program], rest, env, serve=False, shell=shell)
    if program in ("vllm", "sglang"):
        engine = VLLM if program == "vllm" else SGLANG
        if rest[:1] == ["serve"]:
            return _find_served(engine, rest[1:], env, shell)
        return NotAnEngine(f"{' '.join([program, *rest[:1]])} starts no server", Known.NO_ENGINE)
    if program == _ROUTER_WITH_WORKERS:
        return NotAnEngine(f"{program} starts a router and its engines in one container", Known.ROUTER_WITH_WORKERS)
    if _ROUTERS.fullmatch(program):
        return NotAnEngine(f"{program} starts a router, no engine", Known.NO_ENGINE)
    if _BESIDE_ENGINES.fullmatch(program):
        return NotAnEngine(f"{program} starts no engine", Known.NO_ENGINE)
    if _BENCHMARKS.fullmatch(program):
        return NotAnEngine(f"{program} measures an engine and starts none", Known.NO_ENGINE)
    return NotAnEngine(f"{program or 'the command'} is not known to start an engine")


def _find_served(engine: Engine, arguments: list[str], env: Mapping[str, str], shell: bool) -> Start | NotAnEngine:
    if engine is VLLM and "--omni" in arguments:
        return NotAnEngine("vllm serve --omni hands over to vLLM-Omni, whose flags are not known here")
    if engine is SGLANG:
        arguments, backend = _sglang_backend(arguments)
        if backend not in ("auto", "llm"):
            return NotAnEngine(f"sglang serve --model-type {backend} starts another server than the LLM engine")
    return Start(engine, arguments, env, shell=shell)


def _sglang_backend(arguments: list[str]) -> tuple[list[str], str]:
    """Without --model-type, spelt in full only (sglang/cli/serve.py: _extract_model_type_override)."""
    kept, backend = [], "auto"
    words = iter(arguments)
    for word in words:
        if word == "--model-type":
            backend = next(words, "")
        elif word.startswith("--model-type="):
            backend = word.partition("=")[2]
        else:
            kept.append(word)
    return kept, backend


def _python_program(words: list[str]) -> tuple[str, list[str]]:
    """The module or script that Python runs, and its arguments. A script is named by its file or its module's."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-") or word == "-":
            path = word.removesuffix(".py").strip("/").replace("/", ".")
            known = (name for name in (*_MODULES, _VLLM_MAIN) if path.endswith("." + name) or path == name)
            return next(known, word.rpartition("/")[2]), words[index:]
        if word == "--check-hash-based-pycs":
            index += 1
        for position, letter in enumerate(word[1:] if not word.startswith("--") else "", start=2):
            if letter in "mcWX":  # the rest of the word is its value, or the next word
                value = word[position:] or next(iter(words[index : index + 1]), "")
                index += not word[position:]
                if letter == "m":
                    return value, words[index:]
                if letter == "c":
                    return "python -c", []
                break
    return "python", []


def _unwrapped(program: str, words: Sequence[str]) -> tuple[Sequence[str], dict[str, str]]:
    """The command inside a wrapper, and the variables that ``env`` sets for it."""
    own, with_value = _WRAPPERS[program]
    given: dict[str, str] = {}
    index = 0
    while index < len(words):
        word = words[index]
        assignment = _ASSIGNMENT.fullmatch(word) if program == "env" else None
        if word == "--":
            index += 1
            break
        if assignment:
            given[assignment[1]] = assignment[2]
        elif not word.startswith("-"):
            break
        elif word in with_value:
            index += 1
        index += 1
    return words[index + own :], given


# ---- shell strings: simple commands only


#: In an environment: more variables are set than are known (a container's envFrom, a file that is sourced), so that no
#: default in a shell string can be believed.
UNKNOWN_VARIABLES = "*"
#: Stands for what a command substitution gives.
OUTPUT = "$_output"

_OPENS = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_SKIPPED = {"then", "do", "else", "elif", "!", "time"} | _OPENS | _CLOSES


@dataclass
class _Command:
    """A simple command. ``in_branch``: inside a condition, a loop or a function. ``after_test``: behind && or ||."""

    words: list[str]
    in_branch: bool
    after_test: bool


def _find_in_shell(program: str, words: list[str], env: Mapping[str, str]) -> Start | NotAnEngine:
    options = [word for word in words if re.fullmatch(r"-[a-zA-Z]*c", word)]
    script = words[words.index(options[0]) + 1 :] if options else []
    if not script:
        return NotAnEngine(f"{program} runs a script that is not on the command line")
    plain = _plain(script[0])
    if re.search(r"(?<!<)<<(?!<)", plain):
        return NotAnEngine(f"{program} -c has a here-document, which is not read")
    variables, starts, others, unread = dict(env), [], [], False
    if ":=" in plain:
        variables[UNKNOWN_VARIABLES] = ""
    assigned: set[str] = set()
    for command in _shell_commands(plain):
        words = command.words
        if words[:1] == ["export"]:
            words.pop(0)
        while words and (assignment := _SHELL_ASSIGNMENT.fullmatch(words[0])):
            name, value = assignment[1], _shell_expand(assignment[3], variables)
            # Which of several values it has there is decided where it runs.
            is_open = command.in_branch or command.after_test or name in assigned or bool(assignment[2])
            variables[name] = OUTPUT if is_open else value
            assigned.add(name)
            words.pop(0)
        if words[:1] and words[0] in (".", "source", "eval", "read", "mapfile", "declare", "set"):
            variables[UNKNOWN_VARIABLES] = ""
        words = [part for word in words for part in (script[2:] if word == "$@" else _shell_split(word, variables))]
        start = find_start(words, variables, shell=True)
        if isinstance(start, Start) and command.in_branch:
            return NotAnEngine(
                f"{program} -c starts {start.engine.name} inside a condition, a loop or a function, which is decided "
                f"where it runs"
            )
        if isinstance(start, Start):
            starts.append(start)
        elif start.known is not Known.NOTHING:
            others.append(start)
        elif re.search(r"vllm|sglang", " ".join(words)):
            unread = True
    if len(starts) == 1:
        return starts[0]
    if others and not starts and not unread:
        return others[-1]
    return NotAnEngine(f"{program} -c starts {'several engines' if starts else 'no engine that is known here'}")


def _plain(script: str) -> str:
    """The script without comments, and with OUTPUT for each command substitution and arithmetic expansion."""
    text = script.replace("\\\n", " ")
    out: list[str] = []
    index, quote = 0, ""
    while index < len(text):
        char = text[index]
        if char == "\\" and quote != "'":
            out.append(text[index : index + 2])
            index += 2
        elif quote != "'" and text.startswith("$(", index):
            index = _closing(text, index + 1)
            out.append(OUTPUT)
        elif quote != "'" and char == "`":
            end = text.find("`", index + 1)
            index = len(text) if end < 0 else end + 1
            out.append(OUTPUT)
        elif not quote and char == "#" and (not out or out[-1][-1:] in " \t\n;&|("):
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
        else:
            if char in "'\"" and quote in ("", char):
                quote = "" if quote else char
            out.append(char)
            index += 1
    return "".join(out)


def _closing(text: str, index: int) -> int:
    """Behind the parenthesis that closes the one at ``index``."""
    depth = 0
    for position in range(index, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _shell_commands(plain: str) -> Iterator[_Command]:
    """The simple commands of a script, redirections left out. Which branch is taken is not known here."""
    import shlex

    lexer = shlex.shlex(plain, posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    redirected = after_test = False
    depth = 0
    try:
        for word in lexer:
            if word and not word.strip(";&|<>()\n"):
                redirected = ("<" in word or ">" in word) and "\n" not in word
                if redirected:
                    command[:] = command[:-1] if command[-1:] in (["1"], ["2"]) else command
                else:
                    yield _Command(command, depth > 0, after_test)
                    command = []
                    after_test = "&&" in word or "||" in word
            elif redirected:
                redirected = False
            elif not command and word in _SKIPPED:
                depth += (word in _OPENS) - (word in _CLOSES)
            else:
                command.append(word)
    except ValueError:  # an open quote
        return
    yield _Command(command, depth > 0, after_test)


def _shell_split(word: str, variables: Mapping[str, str]) -> list[str]:
    """A word that is all variable is split, as the shell does without quotes; quotes are gone here."""
    expanded = _shell_expand(word, variables)
    return expanded.split() if re.fullmatch(r"\$(\w+|\{[^{}]*\})", word) else [expanded]


def _shell_expand(word: str, variables: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        value = variables.get(match[1] or match[3])
        if not value and UNKNOWN_VARIABLES not in variables:
            value = match[2] if value is None or match[2] is not None else value
        return match[0] if value is None else value

    # Bounded: a script can double a variable as often as it likes.
    return re.sub(r"\$(?:\{(\w+)(?::?-([^${}]*))?\}|(\w+))", replace, word)[:_LONGEST_WORD]
