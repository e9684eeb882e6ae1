"""The page reader: beside prometheus-client's own parser, over half pages, and over anything at all."""

from __future__ import annotations

import functools
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_oracle import COUNTER, GAUGE_OF, GAUGES, Expected, expected, faults, judged

from drainagent.catalogue import ENGINES, SGLANG, VLLM, Engine
from drainagent.page import HalfPage, Page, read_page
from drainagent.reasons import Verdict

PAGES = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "pages").glob("*.txt"))}

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@functools.cache
def theirs(name: str) -> Expected:
    found = expected(PAGES[name])
    assert found is not None
    return found


BUSY = [name for name in PAGES if theirs(name).busy_gauges]
WORKING = [name for name in PAGES if theirs(name).busy_counter]
VLLM_IDLE, SGLANG_IDLE = PAGES["vllm-0.32.0-idle-after-traffic"], PAGES["sglang-0.5.23-idle-after-traffic"]


def read(body: bytes, engine: Engine | None = None, *, framed: bool = True) -> Page:
    page = read_page(body, engine, framed=framed)
    assert isinstance(page, Page), page
    return page


def sums(page: Page) -> dict[str, float]:
    return {gauge.name: gauge.sum for gauge in page.gauges}


def zeros(engine: Engine, **above: float) -> dict[str, float]:
    """Every expected gauge of ``engine`` at zero, but those given by the end of their name."""
    found = dict.fromkeys(engine.expected, 0.0)
    for name, value in above.items():
        found[f"{engine.prefix}{name}"] = value
    return found


# ---- recorded pages


def test_there_are_pages_of_every_kind() -> None:
    assert len(PAGES) > 30
    assert len(BUSY) > 8
    assert len(set(WORKING) - set(BUSY)) > 2, "pages whose gauges are zero over running work"


@pytest.mark.parametrize("name", PAGES)
def test_a_recorded_page_reads_as_prometheus_client_reads_it(name: str) -> None:
    body = PAGES[name]
    page, full = read(body), theirs(name)
    assert faults(body) == []
    assert page.bad_samples == ()
    assert sums(page) == full.sums
    assert {gauge.name: len(gauge.label_sets) for gauge in page.gauges} == full.series
    assert page.missing == tuple(
        name for engine in (page.engines or ENGINES) for name in engine.expected if name not in full.values
    )
    assert page.request_counter == (sum(full.work) if full.counted else None)
    assert page.is_metrics


BY_HAND: list[tuple[str, dict[str, float], tuple[str, ...], float | None, int | None]] = [
    # page, sums, missing, request counter, engines shown
    ("vllm-0.32.0-running-8", zeros(VLLM, num_requests_running=8.0), (), None, 1),
    ("vllm-0.32.0-fresh", zeros(VLLM), (), None, 1),
    ("vllm-0.32.0-dp2-api2-running-8", zeros(VLLM, num_requests_running=8.0), (), None, 2),
    ("vllm-0.32.0-dp2-api2-stuck-nonzero-idle", zeros(VLLM, num_requests_running=7.0), (), None, 2),
    ("vllm-0.32.0-dp2-api2-after-1-request", zeros(VLLM), (), None, 1),
    ("vllm-0.32.0-dp2-api2-fresh", {}, VLLM.expected, None, None),
    ("vllm-0.32.0-disable-log-stats", {}, (*VLLM.expected, *SGLANG.expected), None, None),
    ("vllm-0.32.0-stale-multiproc-dir-restart", zeros(VLLM, num_requests_running=3.0), (), None, 1),
    ("vllm-0.32.0-pd-decode-during-decode", zeros(VLLM, num_requests_running=1.0), (), None, 1),
    (
        "sglang-0.5.23-running-8",
        zeros(SGLANG, num_running_reqs=8.0, num_grammar_queue_reqs=0.0, num_decode_host_receive_queue_reqs=0.0),
        (),
        8.0,
        1,
    ),
    (
        "sglang-0.5.23-dp2-running-8",
        zeros(SGLANG, num_running_reqs=8.0, num_grammar_queue_reqs=0.0, num_decode_host_receive_queue_reqs=0.0),
        (),
        # /freeze_gc is no control route; it stands at zero.
        8.0,
        2,
    ),
    ("sglang-0.5.14-running-4", zeros(SGLANG, num_running_reqs=4.0, num_grammar_queue_reqs=0.0), (), 4.0, 1),
    (
        "sglang-0.5.14-stale-nonzero-idle-12s",
        zeros(SGLANG, num_running_reqs=4.0, num_grammar_queue_reqs=0.0),
        (),
        0.0,
        1,
    ),
    ("sglang-0.5.23-fresh", {}, SGLANG.expected, 0.0, None),
    ("sglang-0.5.23-fresh-no-warmup", {}, SGLANG.expected, 0.0, None),
    (
        "sglang-0.5.23-pd-prefill-inflight-nonzero",
        zeros(
            SGLANG,
            num_running_reqs=1.0,
            num_queue_reqs=3.0,
            num_prefill_inflight_queue_reqs=1.0,
            num_grammar_queue_reqs=0.0,
            num_decode_host_receive_queue_reqs=0.0,
        ),
        (),
        6.0,
        1,
    ),
    (
        "sglang-0.5.23-pd-decode-transfer-queue-nonzero",
        zeros(
            SGLANG,
            num_running_reqs=1.0,
            num_decode_transfer_queue_reqs=5.0,
            num_grammar_queue_reqs=0.0,
            num_decode_host_receive_queue_reqs=0.0,
        ),
        (),
        6.0,
        1,
    ),
    ("llmd-router-0.10.0-pool-not-synced", {}, (*VLLM.expected, *SGLANG.expected), None, None),
]


@pytest.mark.parametrize(("name", "gauges", "missing", "counter", "engines"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_recorded_pages_by_hand(
    name: str, gauges: dict[str, float], missing: tuple[str, ...], counter: float | None, engines: int | None
) -> None:
    page = read(PAGES[name])
    assert sums(page) == gauges
    assert page.missing == missing
    assert page.request_counter == counter
    assert page.engines_shown == engines


def test_process_start_time_is_read_where_there_is_one() -> None:
    assert read(PAGES["vllm-0.32.0-fresh"]).process_start_time_s == 1.79603365354e09
    assert read(PAGES["sglang-0.5.23-fresh"]).process_start_time_s is None


@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize("engine", [None, *ENGINES], ids=["unknown", "vllm", "sglang"])
def test_a_busy_page_is_busy_whatever_engine_was_named(name: str, engine: Engine | None) -> None:
    assert judged(PAGES[name], engine, connections=0) is Verdict.BUSY
    assert judged(PAGES[name], engine, gauges_only=True) is Verdict.BUSY


# ---- names


@pytest.mark.parametrize("gauge", GAUGES, ids=lambda gauge: gauge.name)
def test_every_name_of_a_gauge_counts(gauge: object) -> None:
    names = [name for name, of in GAUGE_OF.items() if of == getattr(gauge, "name", None)]
    body = b"".join(f'{name}{{x="{i}"}} {i + 1}\n'.encode() for i, name in enumerate(names))
    total = sum(range(1, len(names) + 1))
    assert sums(read(body)) == {names[0]: total}
    assert names[0] not in read(body).missing
    for name in names:
        alone = read(f"{name} 3\n".encode())
        assert sums(alone) == {names[0]: 3.0}
        assert names[0] not in alone.missing


def test_names_that_only_begin_like_ours_do_not_count() -> None:
    body = b"".join(
        b'%s%s{reason="capacity"} 7\nx_%s 7\nx:%s{a="b"} 7\n' % (name, tail, name, name)
        for name in (name.encode() for name in GAUGE_OF)
        for tail in (b"_by_reason", b"_total", b":x", b"0")
    )
    page = read(body)
    assert page.gauges == ()
    assert page.bad_samples == ()
    assert faults(body) == []


def test_names_in_label_values_comments_and_help_do_not_count() -> None:
    body = b"".join(
        b'foreign{of="%s",t="{\\"%s\\"} 5"} 7\n# HELP foreign %s 7\n# %s 7\n#%s 7\n \t# %s{a="b"} 7\n' % ((name,) * 6)
        for name in (name.encode() for name in GAUGE_OF)
    )
    page = read(body)
    assert page.gauges == ()
    assert page.bad_samples == ()
    assert faults(body) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"other.family",of="vllm:num_requests_running"} 7',
        '{"vllm:num_requests_waiting.by.reason",engine="0"} 7',
        '{of="vllm:num_requests_running","other.family"} 7',
    ],
)
def test_foreign_families_in_quoted_form_do_not_count(line: str) -> None:
    page = read(VLLM_IDLE + line.encode() + b"\n")
    assert page.bad_samples == ()
    assert sums(page) == zeros(VLLM)


@pytest.mark.parametrize(
    "line",
    [
        '{"vllm:num_requests_running",engine="9"} 1',
        '{engine="9","vllm:num_requests_running"} 1',
        ' \t{ "vllm:num_requests_running" , engine = "9" , } \t 1 \t 1796033819000 ',
        '{"vllm:num_requests_running"} 1',
        'vllm:num_requests_running{"engine"="9"} 1',
        'vllm:num_requests_running { engine="9" }\t1',
        "vllm:num_requests_running{} 1",
        "vllm:num_requests_running\t1e0 -5",
        "  vllm:num_requests_running   0.1e+1   0  ",
        'vllm:num_requests_running{a="}\\"\\\\",b="{",c=",",d="=",e=" # ",f="\\n"} 1\r',
    ],
)
def test_spellings_of_a_sample(line: str) -> None:
    body = VLLM_IDLE + line.encode() + b"\n"
    assert faults(body) == []
    assert sums(read(body)) == zeros(VLLM, num_requests_running=1.0)


@pytest.mark.parametrize("line", ["vllm:num_requests_running{ } 0", "vllm:num_requests_running {\t} 0"])
def test_an_empty_label_set_may_hold_blanks(line: str) -> None:
    page = read(VLLM_IDLE + line.encode() + b"\n")
    assert page.bad_samples == ()
    assert sums(page) == zeros(VLLM)


@pytest.mark.parametrize(
    "foreign",
    [b"foreign", b"foreign{", b"{", b'"', b"}} 1", b"\xff\xfe 1", b"foreign NaN", b"%", b"\x00", b"foreign{a=b} 1 2 3"],
)
def test_a_foreign_line_that_cannot_be_read_hides_nothing(foreign: bytes) -> None:
    for name in ("vllm-0.32.0-running-8", "sglang-0.5.23-running-8"):
        body = PAGES[name]
        for at in (0, body.index(b"\n", len(body) // 3) + 1, len(body)):
            page = read(body[:at] + foreign + b"\n" + body[at:])
            assert sums(page) == theirs(name).sums
            assert page.request_counter == read(body).request_counter


@pytest.mark.parametrize("first", [b"<x>", b"["])
def test_a_first_line_that_looks_like_no_page_hides_nothing(first: bytes) -> None:
    body = first + b'{a="b"} 1\nvllm:num_requests_running 5\nvllm:num_requests_waiting 0\n'
    assert faults(body) == []
    assert judged(body, connections=0) is Verdict.BUSY


# ---- values

NO_COUNTS = [
    "NaN", "nan", "-NaN", "+Inf", "Inf", "-Inf", "inf", "Infinity", "1e999", "-1", "-0.5", "-1e-9", "1_0", "0_0", "0x1",
    "0x0", "0x0p0", "", "0 2 3", "0 x", "0 1.5.2", "0 # {} 1", "٠", "٣", "０", "0,0", "0;", "zero", "0\x00", "0\x0b",
    "--0", "+", "1e", "e1", ".", "0\xa00", "{} 0", '"0"', "0}", "null", "true", "0 \x85",
]  # fmt: skip


@pytest.mark.parametrize("value", NO_COUNTS, ids=ascii)
@pytest.mark.parametrize("name", ["vllm:num_requests_waiting", "sglang:num_decode_transfer_queue_reqs", COUNTER])
def test_a_sample_that_is_no_count_is_never_idle(value: str, name: str) -> None:
    body = VLLM_IDLE if name.startswith("vllm") else SGLANG_IDLE
    line = re.search(
        rb'^%s\{[^}]*(?<!/metrics",method="GET")(?<!/model_info",method="GET")\}' % name.encode(), body, re.M
    )
    assert line is not None
    end = body.index(b"\n", line.end())
    assert judged(body) is (Verdict.BUSY if name.startswith("vllm") else Verdict.IDLE)
    assert judged(body, gauges_only=True) is Verdict.IDLE
    spoilt = body[: line.end()] + b" " + value.encode() + body[end:]
    page = read(spoilt)
    assert page.bad_samples
    assert name in page.bad_samples[0]
    for engine in (None, *ENGINES):
        for connections in (0, 1):
            assert judged(spoilt, engine, connections=connections) is not Verdict.IDLE
        assert judged(spoilt, engine, gauges_only=True) is not Verdict.IDLE
    assert faults(spoilt) == []


def test_a_bad_sample_is_judged_before_summing() -> None:
    body = VLLM_IDLE + b'vllm:num_requests_running{engine="1"} -1\nvllm:num_requests_running{engine="2"} 1\n'
    page = read(body)
    assert page.bad_samples == ('vllm:num_requests_running{engine="1"} -1',)
    assert sums(page) == zeros(VLLM, num_requests_running=1.0)


@pytest.mark.parametrize("value", ["0", "0.0", "-0", "-0.0", "+0", "0e5", "0E-5", "0.", ".0", "00", "1e-400"])
def test_spellings_of_zero(value: str) -> None:
    body = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 0\n".encode()
    assert judged(body, gauges_only=True) is Verdict.IDLE
    assert faults(body) == []


def test_a_sum_is_finite() -> None:
    """An infinite one could not be written as JSON."""
    body = (
        b'vllm:num_requests_running{e="0"} 1e308\nvllm:num_requests_running{e="1"} 1e308\nvllm:num_requests_waiting 0\n'
    )
    assert sums(read(body))["vllm:num_requests_running"] < float("inf")
    assert judged(body, connections=0) is Verdict.BUSY
    assert judged(body, gauges_only=True) is Verdict.BUSY


# ---- pages that conform


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + '"'


SELDOM = st.sampled_from([False, False, False, True])
BLANK = st.sampled_from(["", "", "", " ", "\t", "  ", " \t "])
GAP = st.sampled_from([" ", " ", " ", "\t", "  ", " \t"])
LABEL_NAMES = st.sampled_from(["engine", "model_name", "dp_rank", "reason", "a", "B_1", "le", "endpoint", "method"])
TRICKY = st.sampled_from(
    ["", " ", "a b", 'say "hi"', "back\\slash", "\\", '"', "new\nline", "{", "}", '{"x"} 1', ",", "=", "#", " # ",
     "# TYPE", "é", "\u2028", "\x85", "\xa0", "\x0b", "\r", "\x1c", "a,b=c", '"}', '\\"', "\\n",
     "vllm:num_requests_running 5", 'sglang:num_queue_reqs{a="b"} 1', "/metrics", "/generate", "/health"]
)  # fmt: skip
LABEL_VALUES = TRICKY | st.text(max_size=8)
COUNTS = st.one_of(
    st.sampled_from(["0", "0.0", "0", "+0", "0e0", "1", "8.0", "1e+02", "2.5e-1", "3E1", "007", ".5", "5.", "1e15"]),
    st.integers(0, 10**12).map(str),
    st.floats(0, 1e12, allow_nan=False).map(repr),
)
ANY_VALUE = COUNTS | st.sampled_from(["NaN", "+Inf", "-Inf", "-1", "-2.5e3", "1.7960338e+09"])
FOREIGN_NAMES = st.sampled_from(
    ["python_info", "process_cpu_seconds_total", "up", "vllm:e2e_request_latency_seconds", "sglang:fwd_occupancy",
     "a:b", *(f"{name}{tail}" for name in GAUGE_OF for tail in ("_by_reason", "_", "0", ":x")),
     *(f"x{name}" for name in GAUGE_OF), "vllm:num_requests_runnin", "sglang:http_requests_active_total"]
)  # fmt: skip
HELP = st.sampled_from(["text", "", "vllm:num_requests_running 5", "x \\\\ y"])
#: Names that only the quoted form can write.
QUOTED_FOREIGN = st.sampled_from(["my.metric", "a b", "café", 'with "quotes"', "x{y}", "vllm:queue.time", "a,b", "a=b"])


@st.composite
def series(draw: st.DrawFn, name: str, value: st.SearchStrategy[str], *, quote: bool) -> str:
    keys: list[str] = draw(st.lists(LABEL_NAMES, unique=True, max_size=3))
    pairs = [f"{key}{draw(BLANK)}={draw(BLANK)}{quoted(draw(LABEL_VALUES))}" for key in keys]
    if draw(SELDOM):
        pairs.append(f'"dotted.name"={quoted(draw(LABEL_VALUES))}')
    head = name
    if quote:
        pairs.insert(0, quoted(name))
        head = ""
    if not pairs and draw(st.booleans()):
        head += "{}"
    if pairs:
        comma = "," if draw(SELDOM) else ""
        inside = f"{draw(BLANK)},{draw(BLANK)}".join(pairs)
        head += f"{draw(BLANK) if head else ''}{{{draw(BLANK)}{inside}{draw(BLANK)}{comma}{draw(BLANK)}}}"
    stamp = draw(st.sampled_from(["", "", "", " 0", " 1796033819000", "\t-5"]))
    return f"{draw(BLANK)}{head}{draw(GAP)}{draw(value)}{stamp}{draw(BLANK)}\n"


@st.composite
def family(draw: st.DrawFn) -> str:
    """HELP, TYPE and series of one family: one of ours, or a foreign one."""
    which = draw(st.integers(0, 9))
    values: st.SearchStrategy[str] = COUNTS
    quote = draw(SELDOM)
    if which < 5:
        name = draw(st.sampled_from([*GAUGE_OF, COUNTER]))
    elif which < 8:
        name, values = draw(FOREIGN_NAMES), ANY_VALUE
        quote = False
    else:
        name, values, quote = draw(QUOTED_FOREIGN), ANY_VALUE, True
    written = quoted(name) if quote else name
    text = ""
    if draw(st.booleans()):
        text += f"# HELP {written} {draw(HELP)}\n"
    if draw(st.booleans()):
        text += f"# TYPE {written} {draw(st.sampled_from(['gauge', 'gauge', 'untyped']))}\n"
    for _ in range(draw(st.integers(0, 3))):
        text += draw(series(name, values, quote=quote))
        if draw(SELDOM):
            text += draw(st.sampled_from(["\n", " \t\n", "# a comment\n", "# vllm:num_requests_running 5\n", "#\n"]))
    return text


@SETTINGS
@given(st.lists(family(), min_size=1, max_size=8).map("".join))
def test_a_page_that_conforms_reads_as_prometheus_client_reads_it(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    full = expected(body)
    assert full is not None
    assert faults(body) == []
    page = read_page(body)
    if not body:
        return
    assert isinstance(page, Page)
    assert page.bad_samples == ()
    assert sums(page) == pytest.approx(full.sums)
    assert {gauge.name: len(gauge.label_sets) for gauge in page.gauges} == full.series
    untrusted = any(name.encode() in body for name in SGLANG.counter_untrusted_with)
    if full.counted and not untrusted:
        assert page.request_counter == pytest.approx(sum(full.work))
    else:
        assert page.request_counter is None


@SETTINGS
@given(
    st.dictionaries(LABEL_NAMES, LABEL_VALUES, min_size=1, max_size=5), st.sampled_from(["vllm:num_requests_waiting"])
)
def test_labels_are_read_back(labels: dict[str, str], name: str) -> None:
    text = name + "{" + ",".join(f"{key}={quoted(value)}" for key, value in labels.items()) + "} 2\n"
    (gauge,) = read(text.encode()).gauges
    assert gauge.label_sets == (tuple(sorted(labels.items())),)


# ---- anything at all

TOKENS = st.sampled_from(
    [b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"sglang:num_running_reqs", COUNTER.encode(),
     b"vllm:", b"foo", b"{", b"}", b'"', b"=", b",", b" ", b"\t", b"\n", b"\n", b"\r\n", b"#", b"# TYPE ", b"# HELP ",
     b" gauge", b" counter", b"0", b"1", b"5.0", b"-1", b"NaN", b"+Inf", b"\\", b'\\"', b'engine="0"', b"<html>", b"[",
     b'endpoint="/generate"', b'{engine="0"}', b"{}", b"_", b"1_0", b"\xff", b"\x00", b"\xc2\xa0", b"\xc2\x85",
     b"\x0b", b"\x1c", b"\xef\xbb\xbf", b"e", b".", b"__name__"]
)  # fmt: skip


@settings(SETTINGS, max_examples=400)
@given(st.lists(TOKENS | st.binary(max_size=4), max_size=30).map(b"".join))
def test_nothing_crashes_it_and_nothing_busy_reads_as_idle(body: bytes) -> None:
    assert faults(body) == []


@SETTINGS
@given(st.sampled_from(sorted(PAGES)), st.randoms(use_true_random=False))
def test_a_recorded_page_with_damage(name: str, random: object) -> None:
    import random as stdlib

    assert isinstance(random, stdlib.Random)
    body = bytearray(b"".join(_lines_of_ours(PAGES[name])))
    if not body:
        return
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(body))
        action = random.randrange(3)
        if action == 0:
            body[at] = random.choice(b' \t\n"\\{}#,=0129eE.+-_xN\xff')
        elif action == 1:
            del body[at : at + random.randint(1, 12)]
        else:
            body[at:at] = bytes(random.choices(b' \n"\\{}#,=01.eE-+', k=2))
        if not body:
            return
    assert faults(bytes(body)) == []


def _lines_of_ours(body: bytes) -> list[bytes]:
    """The lines that name us and a few more: small enough to parse many times."""
    lines = body.splitlines(keepends=True)
    return [line for line in lines if any(name.encode() in line for name in [*GAUGE_OF, COUNTER])][:60]


# ---- half pages


@pytest.mark.parametrize("name", PAGES)
def test_a_page_cut_inside_a_line_is_half(name: str) -> None:
    body = PAGES[name]
    near = {m.start() + i for m in re.finditer(rb"num_\w*req|http_requests_active", body) for i in range(0, 200, 7)}
    cuts = near | set(range(1, len(body), 3 if len(body) < 15_000 else 97))
    for cut in sorted(cut for cut in cuts if cut < len(body)):
        if body[cut - 1 : cut] == b"\n":
            continue
        for framed in (True, False):
            assert isinstance(read_page(body[:cut], framed=framed), HalfPage), cut


def boundaries(body: bytes) -> list[int]:
    """Cuts between lines: every one near a line of ours, and every seventh elsewhere."""
    cuts = [found.end() for found in re.finditer(rb"\n", body)][:-1]
    near: set[int] = set()
    for index, (start, end) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True)):
        if any(name.encode() in body[start:end] for name in [*GAUGE_OF, COUNTER]):
            near.update(range(index - 2, index + 3))
    return [cut for index, cut in enumerate(cuts) if index in near or index % 7 == 0]


@pytest.mark.parametrize("name", BUSY)
def test_a_busy_page_cut_between_lines_is_never_idle(name: str) -> None:
    """Nothing but the connection's end says where it ends: it is half, or it carries every expected gauge's series."""
    body = PAGES[name]
    whole = {gauge.name: gauge.label_sets for gauge in read(body).gauges}
    for cut in boundaries(body):
        part = read_page(body[:cut], framed=False)
        if isinstance(part, HalfPage):
            continue
        assert part.missing == ()
        wanted = {gauge.name: gauge.label_sets for gauge in part.gauges if gauge.name in part.engines[0].expected}
        assert wanted == {name: whole[name] for name in wanted}, cut
        assert any(gauge.sum > 0 for gauge in part.gauges), cut
        assert judged(body[:cut], framed=False) is not Verdict.IDLE, cut
        assert judged(body[:cut], framed=False, gauges_only=True) is not Verdict.IDLE, cut


def test_a_cut_between_the_series_of_one_gauge_is_half() -> None:
    body = PAGES["sglang-0.5.23-dp2-running-8"]
    for name in SGLANG.expected:
        first, second = [found.end() + 1 for found in re.finditer(rb"^%s\{.*$" % name.encode(), body, re.M)]
        assert first < second
        assert isinstance(read_page(body[:first], framed=False), HalfPage)
    whole = read_page(body[:second], framed=False)
    assert isinstance(whole, Page)
    assert whole.engines_shown == 2


@pytest.mark.parametrize("name", sorted(set(WORKING) - set(BUSY)))
def test_a_working_page_cut_between_lines_is_never_idle(name: str) -> None:
    """Gauges at zero, the counter above: a whole prefill looks like this."""
    body = PAGES[name]
    assert judged(body, framed=True) is Verdict.BUSY
    idle = [cut for cut in boundaries(body) if judged(body[:cut], framed=False) is Verdict.IDLE]
    assert idle == []


def test_a_page_cut_before_a_gauge_that_is_not_expected_is_never_idle() -> None:
    name = b"sglang:num_decode_host_receive_queue_reqs"
    busy = re.sub(rb"^(%s\{.*\}) 0.0$" % name, rb"\1 3.0", SGLANG_IDLE, flags=re.M)
    assert judged(busy, gauges_only=True) is Verdict.BUSY
    cuts = [cut for cut in boundaries(busy) if cut <= busy.index(b"\n" + name)]
    assert [cut for cut in cuts if judged(busy[:cut], framed=False, gauges_only=True) is Verdict.IDLE] == []


def test_a_body_that_is_no_page() -> None:
    for body in (b"", b" \n", b"<html>\n</html>", b'{"detail":"Not Found"}', b"[]\n", b"[" + b"1," * 10 + b"1]"):
        page = read(body)
        assert not page.is_metrics
        assert page.gauges == ()
        assert judged(body, connections=0, gauges_only=True) is Verdict.BUSY
        assert judged(body, connections=1) is Verdict.BUSY
    read_page(b"[" * 100_000)
    assert isinstance(read_page(b'{"vllm:num_requests_running"'), HalfPage)


# ---- what a page may cost


def cpu_s(body: bytes) -> float:
    start_s = time.process_time()
    read_page(body)
    return time.process_time() - start_s


def test_a_long_number_costs_time_linear_in_its_length() -> None:
    assert cpu_s(b"vllm:num_requests_running " + b"1" * 6_000 + b"x\n") < 0.2


@pytest.mark.parametrize(
    "body",
    [
        b'vllm:num_requests_running{a="' + b"x" * 300_000 + b'"} 1\n',
        b'vllm:num_requests_running{a="' + b"\\n" * 150_000 + b"\n",
        b"vllm:num_requests_running{" + b'a="",' * 60_000 + b"} 1\n",
        b"vllm:num_requests_running 1" + b" " * 300_000 + b"x y\n",
        b"vllm:num_requests_running 1." + b"1" * 300_000 + b"\n",
        b"vllm:num_requests_running{a" + b" " * 300_000 + b"\n",
        b"#" + b"vllm:num_requests_running" * 12_000 + b"\n",
        b"x" + b" vllm:num_requests_running" * 12_000 + b"\n",
        b"\n" * 300_000 + b"vllm:num_requests_running 1\n",
        b"[" + b"1," * 150_000 + b"1]\n",
        b"vllm:num_requests_running 1\n" * 11_000,
    ],
    ids=lambda body: body[:40].decode(),
)
def test_a_hostile_page_of_300_kb_costs_less_than_a_second(body: bytes) -> None:
    assert cpu_s(body) < 1.0
