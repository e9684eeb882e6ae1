"""``drainagent gauges``: the catalogue as a table or as JSON."""

from __future__ import annotations

import json
from typing import Any

import click

from drainagent.catalogue import ENGINES, Engine, Gauge


def gauges_document(engines: tuple[Engine, ...]) -> list[dict[str, Any]]:
    """One object a gauge: engine, name, expected, formerNames, counts."""
    return [
        {
            "engine": engine.name,
            "name": gauge.name,
            "expected": gauge.expected,
            "formerNames": list(gauge.former),
            "counts": gauge.counts,
        }
        for engine in engines
        for gauge in engine.gauges
    ]


def gauges_table(engines: tuple[Engine, ...]) -> str:
    """The same for people."""
    rows = [(engine.name, gauge.name, _expected(gauge), gauge.counts) for engine in engines for gauge in engine.gauges]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(3)), row[3]]) for row in rows]
    for engine in engines:
        for gauge in engine.gauges:
            lines.extend(f"{name} of earlier releases counts as {gauge.name}" for name in gauge.former)
    return "\n".join(lines)


def _expected(gauge: Gauge) -> str:
    return "expected" if gauge.expected else "summed when present"


@click.command("gauges")
@click.option("--engine", metavar="vllm|sglang", help="One engine's alone.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list, an object a gauge.")
def gauges_command(engine: str | None, as_json: bool) -> None:
    """Print the gauges that the hook and the check sum.

    \b
    Exit status: 0; 2 for wrong usage.
    """
    from drainagent.settings import read_engine

    try:
        engines = ENGINES if engine is None else (read_engine(engine),)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(json.dumps(gauges_document(engines), indent=2) if as_json else gauges_table(engines))
