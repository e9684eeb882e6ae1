"""Which container is the engine: by command lines, images, and never by a guess."""

from __future__ import annotations

from typing import Any

import pytest

from drainagent.catalogue import SGLANG, VLLM
from drainagent.engine_container import (
    EngineContainer,
    NoEngine,
    Unsure,
    Wanted,
    find_engine,
    image_name,
    image_release,
)

NO_WISH = Wanted()


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": f"c{index}", **item} for index, item in enumerate(containers)]}}


VLLM_SERVE = {"image": "corp/mirror/vllm-openai:v0.10.1", "command": ["vllm", "serve", "m"]}
SGLANG_LAUNCH = {"image": "corp/sglang:v0.5.9", "command": ["python3", "-m", "sglang.launch_server", "--port", "9000"]}
ROUTER = {"image": "corp/vllm-router:1", "command": ["vllm-router", "--port", "80"]}


@pytest.mark.parametrize(
    ("container", "engine", "ports"),
    [
        (VLLM_SERVE, VLLM, (8000,)),
        (SGLANG_LAUNCH, SGLANG, (9000,)),
        ({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--port=81"]}, VLLM, (81,)),
        ({"command": ["python", "-m", "sglang.launch_server"]}, SGLANG, (30000,)),
        ({"image": "vllm/vllm-openai:v0.9.0", "args": ["--model", "m", "--port", "8001"]}, VLLM, (8001,)),
        ({"image": "vllm/vllm-openai@sha256:" + "0" * 64, "args": ["m"]}, VLLM, (8000,)),
        ({"image": "r:5000/x/vllm-openai-rocm", "args": ["--model", "m"]}, VLLM, (8000,)),
        ({"image": "lmsysorg/sglang:v0.5.9", "args": ["python3", "-m", "sglang.launch_server"]}, SGLANG, (30000,)),
        ({"image": "vllm/vllm-openai:v1", "args": ["vllm", "serve", "m", "--port", "7"]}, VLLM, (7,)),
        ({"command": ["sh", "-c"], "args": ["pip list; exec vllm serve m --port 8123"]}, VLLM, (8123,)),
        ({"command": ["/usr/bin/tini", "--", "vllm", "serve", "m"]}, VLLM, (8000,)),
        (
            {"command": ["vllm", "serve", "m", "--port", "$(P)"], "env": [{"name": "P", "value": "8100"}]},
            VLLM,
            (8100,),
        ),
        ({"command": ["vllm", "serve", "m", "--config", "/c.yaml", "--port", "8080"]}, VLLM, (8080,)),
    ],
)
def test_found(container: dict[str, Any], engine: object, ports: tuple[int, ...]) -> None:
    found = find_engine(pod({"command": ["nginx"]}, container), NO_WISH)
    assert isinstance(found, EngineContainer), found
    assert (found.index, found.engine, found.ports) == (1, engine, ports)


@pytest.mark.parametrize(
    ("containers", "why"),
    [
        ([ROUTER], "vllm-router starts a router"),
        ([{"command": ["python3", "-m", "sglang_router.launch_router"]}], "starts a router"),
        ([{"command": ["sh", "-c", "exec vllm-router --port 80"], "image": "vllm"}], "starts a router"),
        ([{"image": "nginx"}], "no command"),
        ([{"image": "vllm/vllm-openai:v1", "command": ["vllm", "bench", "serve"]}], "starts no server"),
        ([{"image": "lmsysorg/sglang", "command": ["python3", "-m", "sglang.bench_serving"]}], "measures an engine"),
        ([{"image": "corp/sglang-router:1"}], "no command"),
        ([{"image": "corp/app", "command": ["python3", "app.py"]}], "app.py is not known"),
    ],
)
def test_no_engine(containers: list[dict[str, Any]], why: str) -> None:
    found = find_engine(pod(*containers), NO_WISH)
    assert isinstance(found, NoEngine), found
    assert why in found.why


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([VLLM_SERVE, SGLANG_LAUNCH], ["c0 (vLLM)", "c1 (SGLang)", "--container"]),
        ([{"image": "corp/vllm-llama:3", "command": ["/start.sh"]}], ["c0", "--engine and --port"]),
        ([{"image": "corp/llm", "command": ["bash", "/opt/run-sglang.sh"]}], ["c0", "--engine and --port"]),
        ([VLLM_SERVE, {"command": ["/run-vllm.sh"]}], ["c0 starts vLLM", "c1"]),
        (
            [{"command": ["vllm", "serve", "m", "--port", "$(P)"]}],
            ["port that cannot be read", "--port: '$(P)' is set where it runs", "--port must say it"],
        ),
        ([{"command": ["vllm", "serve", "m", "--config", "/c.yaml"]}], ["--config", "--port must say it"]),
        (
            [{"command": ["python3", "-m", "sglang_router.launch_server", "--model-path", "m"]}],
            ["sglang_router.launch_server", "sglang_router.launch_router", "sglang.launch_server"],
        ),
        (
            [{"command": ["sh", "-c", "python3 -m sglang_router.launch_server --model-path m"]}],
            ["sglang_router.launch_server", "Pods of their own"],
        ),
    ],
)
def test_unsure(containers: list[dict[str, Any]], words: list[str]) -> None:
    found = find_engine(pod(*containers), NO_WISH)
    assert isinstance(found, Unsure), found
    for word in words:
        assert word in found.why


def test_what_the_user_says_settles_it() -> None:
    script = {"image": "corp/vllm-llama:3", "command": ["/start.sh"]}
    found = find_engine(pod(script), Wanted(engine=SGLANG, port=8100))
    assert isinstance(found, EngineContainer)
    assert (found.engine, found.ports, found.command) == (SGLANG, (8100,), None)
    # A container that nothing points at is the engine only when it is named.
    plain = {"image": "corp/llm", "command": ["/start"]}
    assert isinstance(find_engine(pod(plain), Wanted(engine=VLLM, port=1)), NoEngine)
    found = find_engine(pod(plain), Wanted(engine=VLLM, port=1, container="c0"))
    assert isinstance(found, EngineContainer)
    found = find_engine(pod(VLLM_SERVE, SGLANG_LAUNCH), Wanted(container="c1"))
    assert isinstance(found, EngineContainer)
    assert found.name == "c1"
    assert isinstance(find_engine(pod(VLLM_SERVE), Wanted(container="main")), NoEngine)
    # A router that is named all the same stays one.
    assert isinstance(find_engine(pod(ROUTER), Wanted(VLLM, "c0", 80)), NoEngine)


def test_what_the_user_says_is_not_believed_against_the_command_line() -> None:
    found = find_engine(pod(VLLM_SERVE), Wanted(engine=SGLANG, port=81))
    assert isinstance(found, EngineContainer)
    assert (found.engine, found.ports) == (VLLM, (8000,))
    found = find_engine(pod(VLLM_SERVE), Wanted(engine=SGLANG, port=8000, container="c0"))
    assert isinstance(found, Unsure)
    assert "it starts vLLM, and --engine says SGLang" in found.why
    found = find_engine(pod(SGLANG_LAUNCH), Wanted(port=8000, container="c0"))
    assert isinstance(found, Unsure)
    assert "9000" in found.why
    assert "8000" in found.why
    launch = {"command": ["python3", "-m", "sglang_router.launch_server"]}
    assert isinstance(find_engine(pod(launch), Wanted(SGLANG, "c0", 1)), Unsure)


def test_images() -> None:
    assert image_name({"image": "r:5000/a/vllm-openai:v0.8.5@sha256:" + "0" * 64}) == "vllm-openai"
    assert image_release({"image": "r:5000/a/vllm-openai:v0.8.5"}) == (0, 8)
    assert image_release({"image": "r:5000/a/vllm-openai"}) is None
    assert image_release({"image": "a:latest"}) is None
    assert image_release({}) is None


SHELL_PORTS = [
    ("exec vllm serve m --max-model-len $((32*1024)) --port 9000", 9000),
    ("exec vllm serve m --served-model-name $(basename $(dirname /a/b)) --port 9000", 9000),
    ("# don't compile\nPORT=9000\n# it's so\nPORT2=x; exec vllm serve m --port $PORT", 9000),
    ("# don't compile\nexec vllm serve m --port 9000", 9000),
    ("exec vllm serve m --port ${PORT:-9000}", 9000),
    ("cd /app && exec vllm serve m --port 9000", 9000),
    ("echo 'a # b'; vllm serve m --port 9000 # the port", 9000),
    ("export PORT=9000; vllm serve m --port $PORT 2>&1 | tee /log", 9000),
    ("exec vllm serve $MODEL --port 9000", 9000),
    # Decided where it runs.
    ("exec vllm serve m $EXTRA_ARGS", None),
    ("exec python3 -m vllm.entrypoints.openai.api_server --model m $EXTRA_ARGS", None),
    ("exec python3 -m sglang.launch_server --enable-metrics --model-path m $EXTRA_ARGS", None),
    ('ARGS=(--port 9000); exec vllm serve m "${ARGS[@]}"', None),
    ("ARGS=\"\"; ARGS+=' --port 9000'; vllm serve m $ARGS", None),
    (': "${PORT:=9000}"; exec vllm serve m --port ${PORT:-8000}', None),
    ('PORT=8000; if [ -n "$TLS" ]; then PORT=8443; fi; exec vllm serve m --port $PORT', None),
    ('PORT=8000; [ "$ROLE" = prefill ] && PORT=8100; exec vllm serve m --port $PORT', None),
    (". /etc/engine.env; exec vllm serve m --port ${PORT:-8000}", None),
    ('if [ "$I" = 0 ]; then ray start --head; vllm serve m; else ray start --block; fi', None),
    ("sleep 5; /opt/start-vllm.sh", None),
    ("vllm serve a & vllm serve b --port 8001 & wait", None),
]


@pytest.mark.parametrize(("script", "port"), SHELL_PORTS)
def test_shell_strings(script: str, port: int | None) -> None:
    """bash would listen on ``port``; None: it cannot be told, and is asked for."""
    found = find_engine(pod({"image": "acme/llm:1", "command": ["/bin/bash", "-c"], "args": [script]}), NO_WISH)
    if port is None:
        assert isinstance(found, Unsure), found
        assert "--port" in found.why
        assert "_output" not in found.why
    else:
        assert isinstance(found, EngineContainer), found
        assert found.ports == (port,)
    said = find_engine(pod({"image": "a/l", "command": ["bash", "-c", script]}), Wanted(VLLM, "c0", 9000))
    assert not isinstance(said, EngineContainer) or said.ports == (9000,)


@pytest.mark.parametrize(
    "more",
    [
        {"env": [{"name": "PORT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "p"}}}]},
        {"env": [{"name": "PORT", "value": "1"}, {"name": "PORT", "valueFrom": {"fieldRef": {}}}]},
        {"envFrom": [{"configMapRef": {"name": "c"}}]},
    ],
)
def test_a_default_is_not_believed_beside_variables_from_elsewhere(more: dict[str, Any]) -> None:
    script = "exec vllm serve m --port ${PORT:-8000}"
    found = find_engine(pod({"command": ["sh", "-c", script], **more}), NO_WISH)
    assert isinstance(found, Unsure), found


@pytest.mark.parametrize(
    "container",
    [
        {
            "command": ["/entrypoint.sh"],
            "args": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
        },
        {"command": ["uv"], "args": ["run", "vllm", "serve", "m"]},
        {"command": ["conda", "run", "-n", "e"], "args": ["python", "-m", "sglang.launch_server"]},
    ],
)
def test_an_engine_behind_an_unknown_program_is_asked_for(container: dict[str, Any]) -> None:
    assert isinstance(find_engine(pod({"image": "acme/llm:1", **container}), NO_WISH), Unsure)


@pytest.mark.parametrize(
    "container",
    [
        {"image": "acme/vllm-openai-router:1", "args": ["--static-backends", "http://a", "--port", "8001"]},
        {"image": "lmcache/vllm-openai:v1", "command": ["lmcache_server", "0.0.0.0", "8080"]},
        {"image": "vllm/vllm-openai:v1", "command": ["sleep", "infinity"]},
        {"image": "nginx", "args": ["--upstream", "http://vllm:8000"]},
    ],
)
def test_what_stands_beside_engines_is_none(container: dict[str, Any]) -> None:
    assert isinstance(find_engine(pod(container), NO_WISH), NoEngine)


def test_a_literal_variable_can_name_another() -> None:
    env = [{"name": "BASE", "value": "8100"}, {"name": "PORT", "value": "$(BASE)"}]
    found = find_engine(pod({"command": ["vllm", "serve", "m", "--port", "$(PORT)"], "env": env}), NO_WISH)
    assert isinstance(found, EngineContainer)
    assert found.ports == (8100,)
