"""Command lines of both engines in every spelling, and what each decides.

Shared by tests/test_engine_argv.py (our reading, no engine needed) and tests/engines/test_argv_agreement.py (the
engines' own parsers). MODEL stands for a model's path. What a line does not say is the engine's default.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drainagent.engine_argv import Kind

VLLM_DEFAULTS: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": 8000,
    "uds": None,
    "listens": True,
    "tls": False,
    "client_certificate": False,
    "metrics": True,
    "load_tracking": False,
    "data_parallel_size": 1,
    "api_server_count": 1,
    "engines": 1,
    "kind": Kind.SERVER,
}
SGLANG_DEFAULTS: dict[str, Any] = {**VLLM_DEFAULTS, "host": "127.0.0.1", "port": 30000, "metrics": False}


@dataclass(frozen=True)
class Line:
    """One command line. ``refused``: the engine does not start with it; ``expected`` is what we read all the same."""

    engine: str
    words: tuple[str, ...]
    expected: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    refused: bool = False

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.env.items()), *self.words])


def _line(engine: str, text: str, options: dict[str, Any]) -> Line:
    env, refused = options.pop("env", {}), options.pop("refused", False)
    defaults = VLLM_DEFAULTS if engine == "vllm" else SGLANG_DEFAULTS
    ports = options.pop("ports", (options.get("port", defaults["port"]),))
    expected = {**defaults, "ports": ports, **options}
    return Line(engine, tuple(shlex.split(text)), expected, env, refused)


def vllm(text: str, /, **options: Any) -> Line:
    return _line("vllm", "vllm serve " + text, options)


def vllm_module(text: str, /, **options: Any) -> Line:
    return _line("vllm", "python3 -m vllm.entrypoints.openai.api_server --model MODEL " + text, options)


def sglang(text: str, /, **options: Any) -> Line:
    return _line("sglang", "python3 -m sglang.launch_server --model-path MODEL " + text, options)


def sglang_serve(text: str, /, **options: Any) -> Line:
    return _line("sglang", "sglang serve " + text, options)


NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
PREFILL, DECODE, HALF = Kind.PREFILL, Kind.DECODE, Kind.HALF
RUST = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": "/usr/bin/true"}

VLLM_LINES = [
    vllm("MODEL"),
    vllm("--model MODEL --port 8001", port=8001),
    vllm("--port 8001 --model=MODEL", port=8001),
    # host and port: every spelling, the last one wins
    vllm("MODEL --host 127.0.0.1 --port 8001", host="127.0.0.1", port=8001),
    vllm("MODEL --host=0.0.0.0 --port=8001", port=8001),
    vllm("MODEL --host=:: --port=8001", host="::", port=8001),
    vllm("MODEL --host '' --port 8001", port=8001),
    vllm("MODEL --host None", host="0.0.0.0"),
    vllm("MODEL --por 8001 --hos 10.0.0.1", host="10.0.0.1", port=8001),
    vllm("MODEL --por=8001", port=8001),
    vllm("MODEL --port 8001 --port 8002", port=8002),
    vllm("MODEL --port=8001 --por 8002 --port 8003 --trust-remote-code", port=8003),
    vllm("MODEL --port ' 8001 '", port=8001),
    vllm("MODEL --port 8_001", port=8001),
    vllm("MODEL --port +8001", port=8001),
    vllm("MODEL --served-model-name a b --port 8001", port=8001),
    vllm("MODEL --api-key a b c --port 8001 --api-key d", port=8001),
    vllm("MODEL --seed -1"),
    vllm("MODEL --max-model-len -1 --port 8001", port=8001),
    vllm("MODEL -O3 --port 8001", port=8001),
    vllm("MODEL -O 3 --port 8001", port=8001),
    vllm("MODEL -O=2 --port 8001", port=8001),
    vllm("MODEL --generation-config vllm --override-generation-config.temperature 0.5 --port 8001", port=8001),
    vllm("MODEL --compilation-config.mode 3 --port 8001", port=8001),
    vllm("MODEL --config=/nowhere.yaml --port 8001", port=8001),
    vllm("--port 8001 -- MODEL", port=8001),
    vllm("MODEL --root-path /inference --port 8001", port=8001),
    vllm("MODEL --uds /run/vllm.sock", uds="/run/vllm.sock", listens=False),
    vllm("MODEL --uds None --port 8001", port=8001),
    vllm("MODEL", env={"VLLM_PORT": "9999", "PORT": "9998", "HOST": "10.0.0.9"}),
    # TLS
    vllm("MODEL --ssl-certfile /c.pem --ssl-keyfile /k.pem", tls=True),
    vllm("MODEL --ssl_certfile=/c.pem --ssl_keyfile=/k.pem", tls=True),
    vllm("MODEL --ssl-certf /c.pem --ssl-k /k.pem", tls=True),
    vllm("MODEL --ssl-certfile /c.pem", tls=True),
    vllm("MODEL --ssl-certfile None --ssl-keyfile ''"),
    vllm("MODEL --ssl-ca-certs /ca.pem"),
    vllm("MODEL --ssl-certfile /c.pem --ssl-keyfile /k.pem --ssl-cert-reqs 2", tls=True, client_certificate=True),
    vllm("MODEL --ssl-certfile /c.pem --ssl-keyfile /k.pem --ssl_cert_reqs=1", tls=True),
    vllm("MODEL --ssl-cert-reqs 2"),
    # metrics and load tracking
    vllm("MODEL --disable-log-stats", metrics=False),
    vllm("MODEL --disable_log_stats", metrics=False),
    vllm("MODEL --disable-log-st", metrics=False),
    vllm("MODEL --enable-server-load-tracking", load_tracking=True),
    vllm("MODEL --enable_server_load_tracking", load_tracking=True),
    vllm("MODEL --enable-server-load", load_tracking=True),
    vllm("MODEL --enable-server-load-tracking --no-enable-server-load-tracking"),
    vllm("MODEL --no-enable-server-load --enable-server-load-track", load_tracking=True),
    # data parallel and API servers
    vllm("MODEL --data-parallel-size 2", data_parallel_size=2, api_server_count=2, engines=2),
    vllm("MODEL --data_parallel_size=2", data_parallel_size=2, api_server_count=2, engines=2),
    vllm("MODEL -dp 2", data_parallel_size=2, api_server_count=2, engines=2),
    vllm("MODEL -dp=2", data_parallel_size=2, api_server_count=2, engines=2),
    vllm("MODEL -dp 4 --api-server-count 1", data_parallel_size=4, engines=4),
    vllm("MODEL -dp 4 -asc 2", data_parallel_size=4, api_server_count=2, engines=4),
    vllm("MODEL -asc=3", api_server_count=3),
    vllm("MODEL --api-serv 3", api_server_count=3),
    vllm("MODEL -dp 4 -dpl 2", data_parallel_size=4, api_server_count=4, engines=4),
    vllm("MODEL -dp 4 -dpl 0", data_parallel_size=4, api_server_count=4, engines=4),
    vllm("MODEL -dp 4 -dpl 2 --headless", data_parallel_size=4, api_server_count=0, engines=0, listens=False),
    vllm("MODEL --headless -dp 4 -dpl 2 -dpr 2", data_parallel_size=4, api_server_count=0, engines=0, listens=False),
    vllm("MODEL --api-server-count 0 -dp 2", data_parallel_size=2, api_server_count=0, engines=0, listens=False),
    vllm("MODEL -dp 4 --data-parallel-rank 1", data_parallel_size=4, kind=HALF),
    vllm("MODEL -dp 4 -dpn 0 --api-server-count 2", data_parallel_size=4, api_server_count=2, kind=HALF),
    vllm("MODEL -dp 4 -dpe -dpn 3", data_parallel_size=4, kind=HALF),
    vllm("MODEL -dp 4 --data-parallel-external-lb --data-parallel-rank=0", data_parallel_size=4, kind=HALF),
    vllm("MODEL -dp 4 -dpe --no-data-parallel-external-lb", data_parallel_size=4, api_server_count=4, engines=4),
    vllm("MODEL -dp 4 -dpl 2 --data-parallel-hybrid-lb", data_parallel_size=4, api_server_count=2, engines=2,
         kind=HALF),
    vllm("MODEL -dp 4 -dpl 2 --data_parallel_hybrid_lb", data_parallel_size=4, api_server_count=2, engines=2,
         kind=HALF),
    vllm("MODEL -dp 4 -dpl 2 -dpr 2 -dph", data_parallel_size=4, api_server_count=2, engines=2, kind=HALF),
    vllm("MODEL -dp 4 -dpl 2 -dpr 2", data_parallel_size=4, api_server_count=2, engines=2, kind=HALF),
    vllm("MODEL -dp 4 -dpl 1 -dph", data_parallel_size=4, kind=HALF),
    vllm("MODEL -dp 2 -dpl 2 -dph", data_parallel_size=2, api_server_count=2, engines=2, kind=HALF),
    vllm("MODEL -dp 4 --nnodes 2 --node-rank 0 -dph", data_parallel_size=4, engines=2, kind=HALF),
    vllm("MODEL -dp 4 --nnodes 2 -r 1 -tp 2 -dpl 2 -dph",
         data_parallel_size=4, engines=2, api_server_count=2, kind=HALF),
    vllm("MODEL -dp 4 -n 2 -r0", data_parallel_size=4, engines=4, api_server_count=4),
    vllm("MODEL -dp 4 -dpl 2 -dpm", data_parallel_size=4, kind=HALF, ports=(8000, 8001)),
    vllm("MODEL -dp 4 -dpl 2 --data-parallel-multi-port-external-lb --port 9000", data_parallel_size=4, kind=HALF,
         port=9000, ports=(9000, 9001)),
    vllm("MODEL -dp 4 --enable-elastic-ep", data_parallel_size=4, engines=4),
    vllm("MODEL -dp 4", env=RUST, data_parallel_size=4, engines=4),
    vllm("MODEL -asc 3", env=RUST),
    vllm("MODEL -asc 3", env={"VLLM_USE_RUST_FRONTEND": "0"}, api_server_count=3),
    vllm("MODEL --grpc -dp 2", data_parallel_size=2, listens=False, api_server_count=0, engines=0),
    # prefill and decode
    vllm("MODEL --kv-transfer-config '" + NIXL + "'", kind=HALF),
    vllm("MODEL --kv_transfer_config='" + NIXL + "'", kind=HALF),
    vllm("MODEL --kv-transfer '" + NIXL.replace("both", "producer") + "'", kind=PREFILL),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("both", "consumer") + "'", kind=DECODE),
    vllm("MODEL --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_consumer", kind=DECODE),
    vllm("MODEL --kv_transfer_config.kv_connector=NixlConnector --kv_transfer_config.kv_role=kv_both", kind=HALF),
    vllm("MODEL --kv-transfer-config.kv_role kv_producer --port 8001 --kv-transfer-config.kv_connector NixlConnector",
         port=8001, kind=PREFILL),
    vllm("MODEL --kv-transfer-config.kv_connector MultiConnector --kv-transfer-config.kv_role kv_both"
         " --kv-transfer-config.kv_connector_extra_config.connectors+"
         """ '{"kv_connector":"NixlConnector"}'""", kind=Kind.UNREADABLE),
    vllm("MODEL --kv-transfer-config '" + NIXL + "' --kv-transfer-config None"),
    vllm("MODEL --kv-transfer-config '" + NIXL + "' --kv-transfer-config.kv_role kv_consumer"
         " --kv-transfer-config.kv_connector NixlConnector", kind=DECODE),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("Nixl", "Offloading") + "'"),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("Nixl", "MooncakeStore") + "'"),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("Nixl", "Mooncake") + "'", kind=HALF),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("NixlConnector", "LMCacheConnectorV1") + "'"),
    vllm("MODEL --kv-transfer-config '" + NIXL.replace("Nixl", "Homemade") + "'", kind=Kind.UNREADABLE),
    vllm("""MODEL --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",
         "kv_connector_extra_config":{"cpu_bytes_to_use":80m,"name":"4G"}}'"""),
    vllm("""MODEL --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both",
         "kv_connector_extra_config":{"connectors":[""" + NIXL
         + "," + NIXL.replace("Nixl", "Offloading") + "]}}'", kind=HALF),
    vllm("""MODEL --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both",
         "kv_connector_extra_config":{"connectors":[""" + NIXL.replace("Nixl", "Offloading") + "]}}'"),
    vllm("MODEL -dpe -dpn 0 -dp 2 --kv-transfer-config '" + NIXL.replace("both", "producer") + "'",
         data_parallel_size=2, kind=PREFILL),
    # the module: always one API server
    vllm_module("--port 8001 --host 127.0.0.1", host="127.0.0.1", port=8001),
    vllm_module("--data-parallel-size 2", data_parallel_size=2, engines=2),
    vllm_module("-dp 2 --api-server-count 4", data_parallel_size=2, engines=2),
    vllm_module("--disable-log-stats --enable-server-load-tracking", metrics=False, load_tracking=True),
    vllm_module("--ssl-keyfile /k.pem --ssl-certfile /c.pem", tls=True),
    vllm_module("--headless"),
    vllm_module("--grpc"),
    vllm_module("-dp 4 -dpl 2 -dph", data_parallel_size=4, engines=2, kind=HALF),
    # refused by vLLM
    vllm("MODEL --port eight", refused=True),
    vllm("MODEL --port", refused=True),
    vllm("MODEL --port 8001 --ho --tls", port=8001, refused=True),
    vllm("MODEL --port -1", refused=True),
    vllm("MODEL --port 70000", refused=True),
    vllm("MODEL --p 8001", refused=True),
    vllm("MODEL --po 8001", refused=True),
    vllm("MODEL --no-disable-log-stats --disable-log-stats", metrics=False, refused=True),
    vllm("MODEL -p 8001", refused=True),
    vllm("MODEL --data-parallel 2", refused=True),
    vllm("MODEL --headless --api-server-count 2", api_server_count=0, engines=0, listens=False, refused=True),
    vllm("MODEL --enable-metrics --port 8001", port=8001, refused=True),
    vllm("MODEL --disable-log-stats=true --port 8001", port=8001, refused=True),
    vllm("MODEL --kv-transfer-config '{\"kv_role\":'", kind=Kind.UNREADABLE, refused=True),
    vllm("""MODEL --kv-transfer-config '{"kv_connector":"NixlConnector"}'""", kind=Kind.UNREADABLE, refused=True),
    vllm("MODEL --kv-transfer-config.kv_role", kind=Kind.UNREADABLE, refused=True),
    vllm("MODEL -dp2 --port 8001", port=8001, refused=True),
    vllm("MODEL --unknown-flag value --port 8001", port=8001, refused=True),
    vllm("MODEL --config /nowhere.yaml --port 8001", port=8001, kind=Kind.UNREADABLE, refused=True),
]  # fmt: skip

SGLANG_LINES = [
    sglang(""),
    sglang("--host 0.0.0.0 --port 30001", host="0.0.0.0", port=30001),
    sglang("--host=0.0.0.0 --port=30001", host="0.0.0.0", port=30001),
    sglang("--host :: --po 30001", host="::", port=30001),
    sglang("--hos 0.0.0.0 --por=30001", host="0.0.0.0", port=30001),
    sglang("--port 1 --port 2", port=2),
    sglang("--port=' 30001'", port=30001),
    sglang("--host None", host="None"),
    sglang("", env={"PORT": "1", "HOST": "1.2.3.4", "SGLANG_PORT": "5", "SGLANG_HOST_IP": "10.1.1.1"}),
    sglang("--fastapi-root-path /x --port 30001", port=30001),
    sglang("--config=/nowhere.yaml --port 30001", port=30001),
    sglang("--enable-metrics", metrics=True),
    sglang("--enable-metrics --port 30001 --log-requests", port=30001, metrics=True),
    sglang("--allowed-media-domains a b --enable-metrics", metrics=True),
    sglang("--uvicorn-access-log-exclude-prefixes --port 30001", port=30001),
    sglang("--random-seed -1 --port 30001", port=30001),
    sglang("--ssl-certfile /c.pem --ssl-keyfile /k.pem", tls=True),
    sglang("--ssl-certf=/c.pem --ssl-keyfile=/k.pem --ssl-ca-certs /ca.pem", tls=True),
    sglang("--ssl-certfile '' --ssl-keyfile ''"),
    sglang("--dp-size 2", data_parallel_size=2, engines=2),
    sglang("--dp 2", data_parallel_size=2, engines=2),
    sglang("--dp=2", data_parallel_size=2, engines=2),
    sglang("--data-parallel-size 2", data_parallel_size=2, engines=2),
    sglang("--data-par=2", data_parallel_size=2, engines=2),
    sglang("--tp 4 --dp 4 --enable-dp-attention", data_parallel_size=4, engines=4),
    sglang("--tp-size 4 --attn-dp-size 2", data_parallel_size=2, engines=2),
    sglang("--tp-size 4 --attention-data-parallel-size=2", data_parallel_size=2, engines=2),
    sglang("--tp 4 --attn-dp-size 4 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000",
           data_parallel_size=4, engines=2),
    sglang("--tp 4 --attn-dp-size 4 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000", data_parallel_size=4,
           engines=2, listens=False, api_server_count=0),
    sglang("--tp 8 --attn-dp-size 2 --nnodes 4 --node-rank 2 --dist-init-addr 10.0.0.1:5000", data_parallel_size=2,
           listens=False, api_server_count=0),
    sglang("--tp 4 --pp-size 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000"),
    sglang("--tp 4 --dp 2 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000", data_parallel_size=2, engines=2),
    sglang("--tp 4 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000", listens=False, api_server_count=0,
           engines=0),
    sglang("--nnodes 2 --node-rank=0 --tp 2 --dist-init-addr 10.0.0.1:5000"),
    sglang("--tokenizer-worker-num 4", api_server_count=4),
    sglang("--tokenizer-w=2", api_server_count=2),
    sglang("--disaggregation-mode prefill", kind=PREFILL),
    sglang("--disaggregation-mode=decode", kind=DECODE),
    sglang("--disaggregation-m decode", kind=DECODE),
    sglang("--disaggregation-mode prefill --disaggregation-mode null"),
    sglang("--disaggregation-mode prefill --disaggregation-bootstrap-port 8999", kind=PREFILL),
    sglang("--smg-grpc-mode", listens=False, api_server_count=0),
    sglang("--grpc-mode", listens=False, api_server_count=0),
    sglang("--grpc-port 40000"),
    sglang("--tp 2 --attn-dp-size 2", env={"SGLANG_RUST_SERVER": "1"},
           data_parallel_size=2, engines=2, ports=(30000, 30001)),
    sglang("", env={"SGLANG_RUST_SERVER": "1"}),
    sglang_serve("MODEL --port 30001", port=30001),
    sglang_serve("--model-path MODEL --port 30001 --enable-metrics", port=30001, metrics=True),
    sglang_serve("--model MODEL --host 0.0.0.0", host="0.0.0.0"),
    sglang_serve("MODEL --model-type llm --port=30001", port=30001),
    sglang_serve("MODEL --model-type=auto --disaggregation-mode decode", kind=DECODE),
    # refused by SGLang
    sglang("--enable_metrics", refused=True),
    sglang("--enable-metrics=true", refused=True),
    sglang("--enable-metric --port 30001", port=30001, refused=True),
    sglang("--port x", refused=True),
    sglang("--p 30001", refused=True),
    sglang("--disaggregation-mode both", kind=Kind.UNREADABLE, refused=True),
    sglang("--ssl-certfile /c.pem", tls=True, refused=True),
    sglang("--dp-size 2 --attn-dp-size 2 --tp 2", data_parallel_size=4, engines=4, refused=True),
    sglang("--unknown-flag value --port 30001", port=30001, refused=True),
    sglang("--config /nowhere.yaml --port 30001", port=30001, kind=Kind.UNREADABLE, refused=True),
    sglang("extra --port 30001", port=30001, refused=True),
    sglang("--data-parallel-size-local 2", refused=True),
]  # fmt: skip

LINES = VLLM_LINES + SGLANG_LINES
