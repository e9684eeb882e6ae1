"""Writes docs/reference.md from the code, docs/measured.md from the suites' reports, and tables into others.

``make docs``.

``python docs/generate.py engines=FILE bench=FILE …`` takes new reports first (``make measured``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drainagent import timeline
from drainagent.catalogue import ENGINES
from drainagent.reasons import Reason
from drainagent.verdict import LOAD_READS
from drainagent.window import LEADER_GONE_READS
from operator_glue.reference import (
    admission_table,
    condition_table,
    event_table,
    key_table,
    protocol_table,
    reason_table,
    rights_table,
)
from operator_glue.runtime.metrics import Metrics

HERE = Path(__file__).parent
MEASURED = HERE / "measured"


def reference() -> str:
    """The page's text."""
    lines = [
        "# Reference",
        "",
        "Made from the code by `make docs`; do not edit.",
        "",
        "## Constants",
        "",
        "| constant | value |",
        "|---|---|",
        f"| the settle, in which nothing is read | {timeline.SETTLE_S:g} s |",
        f"| reads | one every {timeline.READ_PERIOD_S:g} s, start to start |",
        f"| idle reads in a row that end the hook | {timeline.IDLE_READS} |",
        f"| no read starts after | G − {timeline.LAST_READ_BEFORE_KILL_S:g} s |",
        f"| the hook is back by | G − {timeline.BACK_BEFORE_KILL_S:g} s |",
        f"| a whole read takes at most | {timeline.READ_BOUND_S:g} s |",
        f"| G (`terminationGracePeriodSeconds`) | {timeline.MIN_GRACE_S} to {timeline.MAX_GRACE_S} s, "
        f"{timeline.DEFAULT_GRACE_S} when unset |",
        f"| reads of vLLM's `/load` in a row at exactly 0 that prove no request | {LOAD_READS} |",
        "| where in its second each read of a leader lies, in turn "
        f"| {', '.join(f'{place_s:g}' for place_s in timeline.LEADER_READ_PLACES_S)} s |",
        f"| reads in a row without an answer after which a leader counts as gone | {LEADER_GONE_READS} |",
        "",
        "## Gauges",
        "",
        "| engine | gauge | on a complete page | counts | former names |",
        "|---|---|---|---|---|",
    ]
    for engine in ENGINES:
        for gauge in engine.gauges:
            former = ", ".join(f"`{name}`" for name in gauge.former)
            expected = "expected" if gauge.expected else "summed when present"
            lines.append(f"| {engine.name} | `{gauge.name}` | {expected} | {gauge.counts} | {former} |")
    for engine in ENGINES:
        if engine.request_counter is not None:
            routes = ", ".join(f"`{route}`" for route in sorted(engine.control_routes))
            lines += [
                "",
                f"{engine.name}'s request counter is `{engine.request_counter}`, summed over every route but the "
                f"control routes: {routes}.",
            ]
    lines += ["", "## Reasons", "", "| reason | meaning |", "|---|---|"]
    lines += [f"| `{reason.word}` | {reason.sentence} |" for reason in Reason]
    return "\n".join(lines) + "\n"


#: Kept in docs/measured, by the suite that writes it.
REPORTS = {
    "engines": "tests/engines/run.py",
    "bench": "benchmarks/run.py",
    "agent-tree": "benchmarks/agent_tree.py",
    "kubelet": "tests/cluster/hook",
    "engine-pods": "tests/cluster/engines/run.py",
}


def measured(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of figures."""
    lines = ["# Measured", "", "Made by `make measured` from the reports in `docs/measured/`; do not edit."]
    lines += _engines(reports["engines"])
    lines += _engine_pods(reports["engine-pods"])
    lines += _kubelet(reports["kubelet"])
    bench, tree = reports["bench"], reports["agent-tree"]
    form = "the quick form" if bench["quick"] else "the full form"
    lines += ["", "## What the hook costs", "", f"`make bench`, {form}: beside an inline `python3 -c` urllib hook.", ""]
    lines += _figures(bench["figures"])
    form = "the quick form" if tree["quick"] else "the full form"
    lines += ["", "## What the agent's folder costs", "", f"`make bench-tree`, {form}.", ""]
    lines += _figures(tree["figures"])
    return "\n".join(lines) + "\n"


def _engines(engines: Mapping[str, Any]) -> list[str]:
    versions, machine = engines["versions"], engines["machine"]
    lines = [
        "",
        "## Real engines",
        "",
        f"vLLM {versions['vllm']} and SGLang {versions['sglang']} on the CPU with small random models, drainagent "
        f"{versions['drainagent']}, {machine['cores']} cores, {engines['date'][:10]}, the {engines['form']} form of "
        f"`make test-engines`. Durations say nothing of production; behaviour does. Seconds are from the delete. "
        f"“met”: requests still running when the hook returned, which SIGTERM meets; “lost”: of them or of all, those "
        f"that did not end whole. Requests that outlast G − 5 are met and lost by design (outcome `deadline`).",
        "",
        "| engine | scenario | G | outcome | reads | returned | after the last byte | requests | met | lost | note |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for trial in engines["trials"]:
        after = "" if trial["after_last_s"] is None else f"{trial['after_last_s']:.1f}"
        lines.append(
            f"| {trial['engine']} | {trial['what']} | {trial['grace_s']:g} | {trial['outcome'] or 'not tried'} | "
            f"{trial['reads']} | {_or_blank(trial['returned_s'], '.1f')} | {after} | {trial['requests']} | "
            f"{trial['met']} | {_or_blank(trial['lost'], '')} | {trial['note']} |"
        )
    lines += [
        "",
        "From the last response to the hook's return:",
        "",
        "| engine | clients | trials | median | most | bound |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for one in engines["medians"]:
        lines.append(
            f"| {one['engine']} | {one['leaving']} their connections | {one['trials']} | {one['median_s']:.1f} s | "
            f"{one['most_s']:.1f} s | {one['bound_s']:g} s |"
        )
    return lines


def _engine_pods(report: Mapping[str, Any]) -> list[str]:
    versions = report["versions"]
    lines = [
        "",
        "## Real engines in Pods",
        "",
        f"vLLM {versions['vllm']} and SGLang {versions['sglang']} on a real kubelet ({versions['kubelet']}), the hook "
        f"put there by `drainagent inject`; through the Pod's address, or through vllm-router "
        f"{versions['vllm-router']} and sglang-router {versions['sglang-router']} with Kubernetes discovery in front "
        f"of two replicas. {report['machine']['cores']} cores, {report['date'][:10]}, the {report['form']} form. "
        f"Requests on the deleted replica; “by the router”: lost to what the router did, whatever the replica.",
        "",
        "| engine | through | scenario | hook | G | outcome | reads | returned | SIGTERM after | requests | met | lost "
        "| by the router |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {trial['engine']} | {trial['router'] or 'the Pod'} | {trial['what']} | {trial['hook']} | "
        f"{trial['grace_s']:g} | {trial['outcome'] or ''} | {_or_blank(trial['reads'], '')} | "
        f"{_or_blank(trial['returned_s'], '.1f')} | {_or_blank(trial['sigterm_after_return_s'], '.3f')} | "
        f"{trial['on_deleted']} | {trial['met']} | {trial['lost']} | {trial['lost_by_router']} |"
        for trial in report["trials"]
    ]


def _or_blank(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _kubelet(report: Mapping[str, Any]) -> list[str]:
    versions, run = report["versions"], report["run"]
    lines = [
        "",
        "## The hook on a real kubelet",
        "",
        f"Kubernetes {versions['kubernetes']}, containerd {versions['containerd']}, runc {versions['runc']}, the "
        f"stand-in engine; {report['machine']['cores']} cores, {report['date'][:10]}; {run['cases']} cases, "
        f"{run['failed']} failed, in {run['seconds']:.0f} s (`make test-cluster`).",
        "",
        "| figure | value | of |",
        "|---|---|---|",
    ]
    return lines + [
        f"| {one['name']}: {one['meaning']} | {one['value']:.3g} {one['unit']} | {one['n']} |"
        for one in report["figures"]
    ]


def _figures(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| figure | value | beside | ratio | limit |", "|---|---|---|---|---|"]
    for one in figures:
        beside = "" if one["beside"] is None else f"{one['beside']:.3g} {one['unit']}"
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        limit = (
            "" if one["limit"] is None else f"{one['limit']:g}" + ("×" if one["limits_ratio"] else f" {one['unit']}")
        )
        lines.append(
            f"| {one['name']}: {one['meaning']} | {one['value']:.3g} {one['unit']} | {beside} | {ratio} | {limit} |"
        )
    return lines


def metric_table() -> str:
    """Of the operator."""
    lines = ["| metric | kind | labels | meaning |\n", "| --- | --- | --- | --- |\n"]
    for name, kind, labels, text in sorted(Metrics().described()):
        lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {text} |\n")
    return "".join(lines)


FIRST, LAST = "<!-- made by `make docs` from here -->\n", "<!-- to here -->\n"


def with_tables(name: str, *tables: str) -> str:
    """The page as it is, with what stands between each pair of marks made anew."""
    made, rest = [], (HERE / name).read_text(encoding="utf-8")
    for table in tables:
        before, _, rest = rest.partition(FIRST)
        _, _, rest = rest.partition(LAST)
        made.append(f"{before}{FIRST}{table}{LAST}")
    return "".join([*made, rest])


def take(name: str, path: Path) -> None:
    """Keep a report as what the docs quote; the hooks' logs are left out. KeyError: no suite writes such a report."""
    REPORTS[name]
    report = json.loads(path.read_text(encoding="utf-8"))
    for trial in report.get("trials", ()):
        trial.pop("log", None)
    MEASURED.mkdir(exist_ok=True)
    (MEASURED / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def pages() -> dict[str, str]:
    """Every page made here, by file name."""
    reports = {name: json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8")) for name in REPORTS}
    return {
        "reference.md": reference(),
        "measured.md": measured(reports),
        "operator.md": with_tables("operator.md", admission_table()),
        "retirement.md": with_tables("retirement.md", protocol_table(), reason_table()),
        "running.md": with_tables(
            "running.md", condition_table(), event_table(), key_table(), metric_table(), rights_table()
        ),
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, _, file = argument.partition("=")
        take(name, Path(file))
    for file_name, text in pages().items():
        (HERE / file_name).write_text(text, encoding="utf-8")
