"""drainagent.engine_argv over the shared table, and what the engines' own parsers never see: wrappers and shells."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from engine_command_lines import LINES, NIXL, SGLANG_LINES, VLLM_LINES, Line
from hypothesis import given
from hypothesis import strategies as st

from drainagent.catalogue import SGLANG, VLLM, Engine
from drainagent.engine_argv import (
    EngineCommand,
    Kind,
    Unread,
    expand_variables,
    given_flags,
    read_arguments,
    read_command,
)
from drainagent.engine_flags import SGLANG_FLAGS, VLLM_FLAGS
from drainagent.engine_start import NotAnEngine


def read(text: str, **env: str) -> EngineCommand:
    command = read_command(shlex.split(text), env)
    assert isinstance(command, EngineCommand), command
    return command


def unread(command: EngineCommand) -> list[str]:
    return [item.flag for item in command.unread]


@pytest.mark.parametrize("line", LINES, ids=str)
def test_table(line: Line) -> None:
    command = read_command(line.words, line.env)
    assert isinstance(command, EngineCommand)
    assert command.engine.option == line.engine
    found: dict[str, Any] = {**vars(command), "listens": command.no_listener is None}
    assert {name: found[name] for name in line.expected} == dict(line.expected)


def test_the_table_is_worth_its_name() -> None:
    assert len({str(line) for line in LINES}) == len(LINES)
    assert len(VLLM_LINES) > 80
    assert len(SGLANG_LINES) > 40


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("vllm serve m --port eight", ["--port"]),
        ("vllm serve m --port", ["--port"]),
        ("vllm serve m --port 0", ["--port"]),
        ("vllm serve m --port 70000", ["--port"]),
        ("vllm serve m --p 8001", ["--port"]),
        ("vllm serve m --data-parallel 2", ["--data-parallel-size", "--data-parallel-size-local"]),
        ("vllm serve m --config /etc/vllm.yaml", ["--config"]),
        ("vllm serve m --config=/etc/vllm.yaml", []),
        ("vllm serve m --disable-log-stats=true", ["--disable-log-stats"]),
        ("vllm serve m --kv-transfer-config x", ["--kv-transfer-config"]),
        ("vllm serve m --kv-transfer-config []", ["--kv-transfer-config"]),
        ("vllm serve m --unknown 1 --also-unknown", []),
        ("vllm serve m --se 1", []),  # ambiguous, but nothing here depends on it
        ("python -m sglang.launch_server --disaggregation-mode both", ["--disaggregation-mode"]),
        ("python -m sglang.launch_server --port $(PORT)", ["--port"]),
        ("python -m sglang.launch_server --host $(HOST)", ["--host"]),
        ("sh -c 'vllm serve m --port $PORT'", ["--port"]),
        ("sh -c 'vllm serve m --host $(hostname -i)'", ["--host"]),
        ("sh -c 'vllm serve m $EXTRA'", ["$EXTRA"]),
        ("vllm serve m $(EXTRA)", ["$(EXTRA)"]),
        ("vllm serve $(MODEL)", []),
    ],
)
def test_what_cannot_be_read_is_named(text: str, flags: list[str]) -> None:
    found = unread(read(text))
    assert set(flags) <= set(found)
    assert bool(found) == bool(flags)


def test_unread_says_flag_and_reason() -> None:
    assert str(Unread("--port", "'x' is no number")) == "--port: 'x' is no number"
    assert read("vllm serve m --port x").unread == (Unread("--port", "'x' is no number"),)


def test_moved_names_the_flags_of_the_listener() -> None:
    assert read("vllm serve m").moved == ()
    assert read("vllm serve m --por 8000 --host=0.0.0.0").moved == ("--host", "--port")
    assert read("vllm serve m --uds /x").moved == ("--uds",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve m --uds /x", "Unix socket /x"),
        ("vllm serve m --headless", "--headless"),
        ("vllm serve m --grpc", "--grpc"),
        ("sglang serve m --smg-grpc-mode", "gRPC"),
        ("sglang serve m --nnodes 2 --node-rank 1", "node rank 1"),
    ],
)
def test_why_there_is_no_listener(text: str, words: str) -> None:
    assert words in (read(text).no_listener or "")


def test_shutdown_timeout() -> None:
    assert read("vllm serve m").shutdown_timeout == 0
    assert read("vllm serve m --shutdown-timeout 40").shutdown_timeout == 40
    assert read("sglang serve m").shutdown_timeout is None


def test_a_config_file_leaves_the_kind_open() -> None:
    assert read("vllm serve m --config a.yaml").kind is Kind.UNREADABLE
    assert read(f"vllm serve m --config a.yaml --kv-transfer-config '{NIXL}'").kind is Kind.HALF
    assert read("sglang serve m --config a.yaml").kind is Kind.UNREADABLE
    assert read("sglang serve m --config a.yaml --disaggregation-mode null").kind is Kind.SERVER


# ---- programs, wrappers, shells


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --port 9",
        "/usr/local/bin/vllm serve m --port 9",
        "/usr/bin/python3 /usr/local/bin/vllm serve m --port 9",
        "python3.12 -u -I -X importtime -W ignore -m vllm.entrypoints.openai.api_server --model m --port 9",
        "python3 -Wignore -OO -um vllm.entrypoints.openai.api_server --port 9",
        "python3 -mvllm.entrypoints.launchers.api_server.entry --port 9",
        "python3 -m vllm.entrypoints.cli.main serve m --port 9",
        "python3 --check-hash-based-pycs always /app/vllm/entrypoints/openai/api_server.py --port 9",
        "env -u X A=b C=d /usr/bin/vllm serve m --port 9",
        "tini -s -p SIGTERM -- vllm serve m --port 9",
        "/usr/bin/dumb-init vllm serve m --port 9",
        "numactl -N 0 --membind=0 vllm serve m --port 9",
        "taskset -c 0-3 vllm serve m --port 9",
        "timeout -k 5 3600 vllm serve m --port 9",
        "nice -n 5 env A=b tini -- python3 -m vllm.entrypoints.openai.api_server --port 9",
        "sh -c 'exec vllm serve m --port 9'",
        "bash -ec 'vllm serve m --port 9'",
        "/bin/bash -l -c 'cd /models && exec vllm serve m \\\n  --port 9 > /log 2>&1'",
        "bash -c 'set -e\n# start: vllm serve x --port 1\nexport PORT=9; vllm serve m --port ${PORT} &\nwait'",
        "sh -c 'PORT=9 vllm serve m --port=$PORT'",
        "sh -c 'vllm serve m --port ${PORT:-9}'",
        "sh -c 'FLAGS=\"--port 9\"; vllm serve m $FLAGS'",
        """sh -c 'exec vllm serve "$@"' -- m --port 9""",
        "sh -c 'sleep 1; python3 -m vllm.entrypoints.openai.api_server --port 9 | tee /log'",
    ],
)
def test_starts_of_vllm(text: str) -> None:
    command = read(text)
    assert command.engine is VLLM
    assert command.port == 9
    assert command.unread == ()


@pytest.mark.parametrize(
    "text",
    [
        "sglang serve m --port 9",
        "python3 -m sglang.launch_server --model-path m --port 9",
        "/opt/venv/bin/python /sgl-workspace/sglang/python/sglang/launch_server.py --port 9",
        "sh -c 'exec python3 -m sglang.launch_server --port 9'",
    ],
)
def test_starts_of_sglang(text: str) -> None:
    command = read(text)
    assert command.engine is SGLANG
    assert command.port == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no command"),
        ("sleep inf", "sleep starts no engine"),
        ("vllm bench serve", "vllm bench starts no server"),
        ("vllm", "vllm starts no server"),
        ("vllm launch render m", "vllm launch starts no server"),
        ("vllm serve m --omni", "vLLM-Omni"),
        ("sglang generate", "sglang generate starts no server"),
        ("sglang serve m --model-type diffusion", "--model-type diffusion"),
        ("vllm-router --host 0.0.0.0", "vllm-router starts a router"),
        ("python3 -m sglang_router.launch_server --model-path m", "sglang_router.launch_server starts a router"),
        ("python3 -m sglang_router.launch_router", "starts a router"),
        ("smg launch", "smg starts a router"),
        ("VLLM::EngineCore", "VLLM::EngineCore is a process that an engine started"),
        ("'sglang::scheduler_TP0'", "is a process that an engine started"),
        ("python3 -c 'import vllm'", "python -c is not known"),
        ("python3", "python is not known"),
        ("torchrun -m sglang.launch_server", "torchrun is not known"),
        ("sh /start.sh", "sh runs a script"),
        ("bash -c 'echo hello'", "no engine"),
        ("bash -c 'vllm serve a --port 1 & vllm serve b --port 2; wait'", "several engines"),
        ("bash -c 'vllm serve \"a'", "no engine"),
        ("sh -c 'if true; then exec vllm serve m --port 9; fi'", "inside a condition"),
        ("sh -c 'case $H in *-0) vllm serve m;; *) ray start;; esac'", "inside a condition"),
        ("sh -c 'f(){ vllm serve \"$@\"; }; f --port 9000'", "a function"),
        ("sh -c 'while true; do vllm serve m; done'", "a loop"),
        ("sh -c 'cat <<E > x\nE\nvllm serve m'", "here-document"),
    ],
)
def test_not_an_engine(text: str, why: str) -> None:
    command = read_command(shlex.split(text))
    assert isinstance(command, NotAnEngine)
    assert why in command.why


def test_variables_of_env_reach_the_engine() -> None:
    assert read("env VLLM_USE_RUST_FRONTEND=1 vllm serve m -dp 4").api_server_count == 1
    assert read("vllm serve m -dp 4", VLLM_USE_RUST_FRONTEND="1").api_server_count == 1


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "b"),
        ("x$(A)y$(A)", "xbyb"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$b"),
        ("$(NONE)", "$(NONE)"),
        ("$(A", "$(A"),
        ("$A $", "$A $"),
        ("$()", "$()"),
    ],
)
def test_expand_variables(text: str, expanded: str) -> None:
    assert expand_variables(text, {"A": "b"}) == expanded


def test_a_container_is_expanded_and_a_process_is_not() -> None:
    words = ["vllm", "serve", "m", "--port", "$(PORT)"]
    assert read("vllm serve m --port $(PORT)", PORT="9").port == 9
    command = read_command(words, {"PORT": "9"}, expand=False)
    assert isinstance(command, EngineCommand)
    assert unread(command) == ["--port"]


def test_what_follows_a_command_substitution_is_read() -> None:
    command = read("sh -c 'vllm serve m --host $(hostname -i) --api-key `cat /key` --port 9'")
    assert command.port == 9
    assert unread(command) == ["--host"]


@pytest.mark.parametrize("text", ["sh -c 'vllm serve m; true'", "tini -- vllm serve m", "timeout 5 vllm serve m"])
def test_the_process_of_a_wrapper_is_no_engine(text: str) -> None:
    assert isinstance(read_command(shlex.split(text)), EngineCommand)
    assert isinstance(read_command(shlex.split(text), expand=False), NotAnEngine)


def test_arguments_alone() -> None:
    assert read_arguments(VLLM, ["m", "--port", "$(PORT)", "-dp", "2"], {"PORT": "9"}).port == 9
    assert read_arguments(VLLM, ["m", "-dp", "2"]).api_server_count == 2
    assert read_arguments(SGLANG, []).port == 30000


# ---- properties

SAMPLES = [
    "--port", "--host", "8001", "-dp", "-1", "--", "-", "--kv-transfer-config.a.b+", "--kv-transfer-config", "{}",
    "--config", "$(A)", "-O", "-.5", "--p", "--=", "-dp=", "--nnodes", "99999999999", "--tp-size", "--attn-dp-size",
    "--data-parallel-hybrid-lb", "-dpm", "-dpl", "--node-rank", "serve", "vllm", "sh", "-c", "env", "taskset",
]  # fmt: skip
WORDS = st.one_of(st.text(max_size=12), st.sampled_from(SAMPLES))
STARTS = st.sampled_from(
    [[], ["vllm", "serve"], ["python3", "-m", "sglang.launch_server"], ["sglang", "serve"], ["sh", "-c"], ["python"]]
)


@given(STARTS, st.lists(WORDS, max_size=8), st.booleans())
def test_never_raises(start: list[str], words: list[str], expand: bool) -> None:
    command = read_command(start + words, {"A": "b"}, expand=expand)
    if isinstance(command, EngineCommand):
        assert 0 < command.port < 65536
        assert command.ports[0] == command.port
        assert command.kind is not Kind.UNREADABLE or command.unread


@pytest.mark.parametrize("depth", [10, 5_000])
def test_deep_json_is_not_fatal(depth: int) -> None:
    opened = '{"kv_role":"kv_both","kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":['
    command = read_arguments(VLLM, ["--kv-transfer-config", opened * depth + NIXL + "]}}" * depth])
    assert command.kind is (Kind.HALF if depth == 10 else Kind.UNREADABLE)
    command = read_arguments(VLLM, ["--kv-transfer-config" + ".a" * depth, "1"])
    assert command.kind is (Kind.SERVER if depth == 10 else Kind.UNREADABLE)


def test_nesting_and_growth_are_bounded() -> None:
    assert isinstance(read_command(["nohup"] * 5_000 + ["vllm", "serve"]), EngineCommand)
    assert isinstance(read_command(["sh", "-c", '"$@"', "--"] * 5_000), NotAnEngine)
    doubled = "A=aaaaaaaa; " + "A=$A$A; " * 60
    assert isinstance(read_command(["sh", "-c", doubled + "vllm serve m --host $A"]), EngineCommand)


def spelt(engine: Engine, name: str, value: str) -> list[list[str]]:
    spellings = [[name, value], [f"{name}={value}"], [name[:-1], value]]
    if engine is VLLM:
        spellings.append([f"--{name[2:].replace('-', '_')}={value}"])
    return spellings


@given(st.sampled_from([VLLM, SGLANG]), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 65535)), min_size=1))
def test_the_last_port_wins_in_every_spelling(engine: Engine, ports: list[tuple[int, int]]) -> None:
    arguments: list[str] = []
    for how, port in ports:
        spellings = spelt(engine, "--port", str(port))
        arguments += spellings[how % len(spellings)]
    command = read_arguments(engine, arguments)
    assert command.port == ports[-1][1]
    assert command.unread == ()


@given(st.permutations([("--host", "h"), ("--port", "9"), ("--ssl-certfile", "c"), ("--data-parallel-size", "2")]))
def test_order_does_not_matter(flags: list[tuple[str, str]]) -> None:
    first, second = (read_arguments(engine, [word for flag in flags for word in flag]) for engine in (VLLM, SGLANG))
    for command in (first, second):
        assert (command.host, command.port, command.tls, command.data_parallel_size) == ("h", 9, True, 2)


@pytest.mark.parametrize("text", [VLLM_FLAGS, SGLANG_FLAGS])
def test_flag_lists_are_well_formed(text: str) -> None:
    spellings = [word for line in text.splitlines() for word in line.split()[1:]]
    assert len(spellings) == len(set(spellings))
    assert {"--host", "--port", "--ssl-keyfile", "--config"} <= set(spellings)
    assert all(line.split()[0] in "01?*+" and line.split()[1].startswith("-") for line in text.splitlines())


@pytest.mark.parametrize(
    ("engine", "args", "given_"),
    [
        (VLLM, [], {}),
        (VLLM, ["--por=1", "--port", "2", "--seed", "3"], {"--port": "2", "--seed": "3"}),
        (VLLM, ["--no-enable-server-load-tracking"], {"--enable-server-load-tracking": False}),
        (VLLM, ["-dp", "2", "--disable_log_stats"], {"--data-parallel-size": "2", "--disable-log-stats": True}),
        (VLLM, ["--kv-transfer-config.kv_role", "kv_both"], {"--kv-transfer-config": '{"kv_role": "kv_both"}'}),
        (VLLM, ["--port"], {"--port": ""}),
        (SGLANG, ["--model=m", "--ep", "$(N)"], {"--model-path": "m", "--ep-size": "4"}),
        (SGLANG, ["m", "--not-a-flag", "--", "--port=1"], {}),
    ],
)
def test_the_flags_that_are_given(engine: Engine, args: list[str], given_: dict[str, Any]) -> None:
    assert given_flags(engine, args, {"N": "4"}) == given_
