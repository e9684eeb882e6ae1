"""What an engine's own parser decides of command lines. Runs in the engine's venv, once for many lines.

    venv-vllm/bin/python parse_with_engine.py vllm MODEL_DIR <lines.json >answers.json

In: a list of {"words": [...], "env": {...}}. Out: for each {"refused": "why"} or what the engine decided. The engine's
code runs up to where it would load the model: everything it does to its settings until then is in the answer.
"""

# mypy: disable-error-code="import-not-found, no-redef"

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from typing import Any
from unittest import mock


class Started(Exception):  # noqa: N818
    """The engine would start now."""

    def __init__(self, how: str, args: Any) -> None:
        super().__init__(how)
        self.how, self.engine_args = how, args


def stop(how: str) -> Any:
    def started(args: Any = None, *_: Any, **__: Any) -> Any:
        raise Started(how, args)

    return started


def start_vllm(words: list[str]) -> Started:
    """Run `vllm serve` or the API server's module itself, with what comes after the parsing replaced."""
    from vllm import envs
    from vllm.entrypoints.cli import main, serve
    from vllm.entrypoints.launchers.api_server import entry

    if hasattr(envs, "disable_envs_cache"):
        envs.disable_envs_cache()
    serve.run_server = entry.run_server = stop("one")
    serve.run_multi_api_server, serve.run_headless = stop("many"), stop("headless")
    serve.run_dp_supervisor = stop("supervisor")
    grpc = types.ModuleType("vllm.entrypoints.launchers.grpc_server")
    vars(grpc)["serve_grpc"] = stop("grpc")
    sys.modules[grpc.__name__] = grpc
    served = words[0] == "vllm"
    sys.argv = words if served else [words[2], *words[3:]]
    try:
        (main if served else entry).main()
    except Started as started:
        return started
    raise AssertionError("nothing started")


def vllm_bind(args: Any) -> tuple[str, int]:
    """The address that the engine itself binds."""
    from vllm.entrypoints.launchers import launcher

    bound: list[Any] = []
    launcher.create_server_socket = lambda address, **_: bound.append(address)
    launcher.create_server_unix_socket = lambda _: bound.append(("", args.port))
    launcher.setup_server(args, reuse_port=False)
    host, port = bound[0]
    if not 0 <= port <= 65535:
        raise ValueError(f"bind: {port}")
    return host or "0.0.0.0", port


def vllm_configuration(args: Any, headless: bool) -> tuple[Any, str | None]:
    """The engine's parallel configuration, and what is said where none can be made here."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        made = AsyncEngineArgs.from_cli_args(args).create_engine_config(
            UsageContext.OPENAI_API_SERVER, headless=headless
        )
    except Exception as error:
        sys.stderr.write(f"no configuration: {error!r}\n")
        return None, str(error)
    return made.parallel_config, None


def ask_vllm(words: list[str]) -> dict[str, Any]:
    from uvicorn import Config
    from vllm.entrypoints.launchers.dp_supervisor import DPSupervisor, _build_vllm_dp_server_args

    started = start_vllm(words)
    args = started.engine_args
    host, port = vllm_bind(args)
    ports = DPSupervisor(args).child_ports if started.how == "supervisor" else [port]
    engine_args = _build_vllm_dp_server_args(args, 0) if started.how == "supervisor" else args
    parallel, unmade = None, None
    if started.how != "grpc":
        parallel, unmade = vllm_configuration(engine_args, started.how == "headless")
    engines = None  # that the API server's client has (MPClient)
    if parallel is not None:
        engines = parallel.data_parallel_size_local if parallel.local_engines_only else parallel.data_parallel_size
    config = Config(None, ssl_keyfile=args.ssl_keyfile, ssl_certfile=args.ssl_certfile, log_config=None)
    transfer = args.kv_transfer_config
    # `vllm serve` sets None once it has decided for one; the module never looks at it.
    servers = {"one": 1, "supervisor": 1, "headless": 0, "grpc": 0}.get(started.how, args.api_server_count)
    return {
        "host": host,
        "port": port,
        "ports": ports,
        "uds": args.uds,
        "listens": started.how not in ("grpc", "headless") and not args.uds,
        "tls": config.is_ssl,
        "client_certificate": config.is_ssl and args.ssl_cert_reqs == 2,
        "metrics": not args.disable_log_stats,
        "load_tracking": args.enable_server_load_tracking,
        "data_parallel_size": args.data_parallel_size,
        "api_server_count": servers,
        "engines": 0 if started.how in ("headless", "grpc") else engines,
        "unmade": unmade,
        "shutdown_timeout": args.shutdown_timeout,
        "transfer": transfer
        and [transfer.kv_role, transfer.kv_connector, transfer.kv_connector_extra_config.get("connectors")],
        "balanced": [
            args.data_parallel_external_lb or args.data_parallel_rank is not None,
            args.data_parallel_hybrid_lb
            or (
                args.data_parallel_start_rank is not None
                and args.data_parallel_size_local is not None
                and not args.headless
            ),
            started.how == "supervisor",
        ],
    }


def sglang_engines(cfg: Any) -> int:
    """How many data-parallel ranks have their first tensor-parallel rank, which exports the gauges, on this node."""
    from sglang.srt.entrypoints import engine

    engine.get_parallel = lambda: cfg
    here = engine._calculate_rank_ranges(cfg.node_rank)[1]
    width = cfg.tp_size // cfg.attn_dp_size
    return int(cfg.dp_size * len([rank for rank in here if rank % width == 0]))


def ask_sglang(words: list[str]) -> dict[str, Any]:
    from sglang import launch_server
    from sglang.cli import serve
    from sglang.srt.arg_groups import parallel_hook, serving_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.runtime_context import num_dp_ranks_of
    from sglang.srt.server_args import prepare_server_args
    from uvicorn import Config

    serve.kill_process_tree = lambda *_, **__: None
    launch_server.run_server = stop("serve")
    if words[0] == "sglang":
        try:
            serve.serve(None, words[2:])
            raise AssertionError("nothing started")
        except Started as started:
            args = started.engine_args
    else:
        args = prepare_server_args(words[3:])
    # The resolution that touches what is asked for here; all of it would load the model's configuration.
    parallel_hook.handle_deprecated_dp_attention(args)
    serving_hook.handle_deprecated_args(args)
    with mock.patch("os.path.isfile", return_value=True):
        serving_hook.handle_ssl_validation(args)
    serving_hook.handle_load_balance_method(args)
    cfg = resolving_view(args)
    if cfg.attn_dp_size > 1 and cfg.dp_size > 1:
        parallel_hook.handle_data_parallelism(args)  # raises
    config = Config(None, ssl_keyfile=cfg.ssl_keyfile, ssl_certfile=cfg.ssl_certfile, log_config=None)
    serves = cfg.node_rank == 0 and not cfg.smg_grpc_mode
    return {
        "host": cfg.host,
        "port": cfg.port,
        "uds": None,
        "listens": serves,
        "tls": config.is_ssl,
        "client_certificate": False,
        "metrics": cfg.enable_metrics,
        "load_tracking": False,
        "data_parallel_size": num_dp_ranks_of(cfg),
        "api_server_count": cfg.tokenizer_worker_num if serves else 0,
        "engines": sglang_engines(cfg),
        "mode": cfg.disaggregation_mode,
    }


def main() -> None:
    engine, model = sys.argv[1:]
    lines = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines log to stdout
    ask = ask_vllm if engine == "vllm" else ask_sglang
    answers = []
    for line in lines:
        before = dict(os.environ)
        os.environ.update(line["env"])
        words = [model if word == "MODEL" else word.replace("=MODEL", "=" + model) for word in line["words"]]
        try:
            answers.append(ask(words))
        except (Exception, SystemExit) as error:
            answers.append({"refused": f"{type(error).__name__}: {error}"})
        os.environ.clear()
        os.environ.update(before)
    with contextlib.closing(out):
        json.dump(answers, out)


if __name__ == "__main__":
    main()
