"""The hook's options to its settings: every wrong value has one sentence and a safe value."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainagent import number
from drainagent.catalogue import SGLANG, VLLM
from drainagent.hook_options import HookOptions
from drainagent.settings import HookSettings, hook_settings, read_api_servers, read_network
from drainagent.url import ListenerUrl


def own(host: str) -> bool:
    return host in {"127.0.0.1", "::1", "10.0.0.5", "fd00::5"}


def settings_of(
    options: HookOptions | None = None, env: Mapping[str, str] | None = None, **words: object
) -> tuple[HookSettings, tuple[str, ...]]:
    options = options if options is not None else HookOptions(**{"grace": "30", **words})  # type: ignore[arg-type]
    return hook_settings(options, env or {}, own)


def one_sentence(wrong: tuple[str, ...], *words: str) -> None:
    assert len(wrong) == 1, wrong
    assert "\n" not in wrong[0]
    assert len(wrong[0]) < 1000
    for word in words:
        assert word in wrong[0]


def test_all_right() -> None:
    settings, wrong = settings_of(
        engine="SGLang",
        urls=("http://127.0.0.1:30000/metrics", "https://[::1]:8000", "http://localhost:8001/metrics?x=1"),
        grace="45",
        settle="7.5",
        gauges_only=True,
        load_tracking=False,
        api_servers="4",
        ignore_peers=("10.0.0.0/8", "::1", "fd00::/8", "::ffff:10.1.0.0/112", "192.0.2.7"),
        termination_log=True,
        log_format="json",
    )
    assert wrong == ()
    assert settings == HookSettings(
        engine=SGLANG,
        urls=(
            ListenerUrl("http", "127.0.0.1", 30000),
            ListenerUrl("https", "::1", 8000),
            ListenerUrl("http", "localhost", 8001, "/metrics?x=1"),
        ),
        grace_s=45,
        settle_s=7.5,
        gauges_only=True,
        load_tracking=False,
        api_servers=4,
        ignored_peers=(
            (b"\x0a\0\0\0", 8),
            (b"\0" * 15 + b"\1", 128),
            (b"\xfd" + b"\0" * 15, 8),
            (b"\x0a\1\0\0", 16),
            (b"\xc0\0\2\7", 32),
        ),
        termination_log=True,
        log_json=True,
    )


@pytest.mark.parametrize(
    "grace", [None, "", "nan", "inf", "-inf", "1_0", "15s", "٣٠", "0x1e", "1e999", "-1e999", "1,5"]
)
def test_a_grace_that_is_missing_or_no_number(grace: str | None) -> None:
    settings, wrong = settings_of(grace=grace)
    assert settings.grace_s is None
    one_sentence(wrong, "--grace", "15", "3600", repr(grace) if grace else "missing")


@pytest.mark.parametrize("grace", ["14.999", "0", "-5", "3600.5", "1e9", "1e300", "-1e300"])
def test_a_grace_out_of_bounds_is_used(grace: str) -> None:
    settings, wrong = settings_of(grace=grace)
    assert settings.grace_s == float(grace)
    one_sentence(wrong, "--grace", f"{float(grace):g}", "15", "3600")


@pytest.mark.parametrize("grace", ["15", "3600", "30.5", "+30", "3e1"])
def test_a_right_grace(grace: str) -> None:
    settings, wrong = settings_of(grace=grace)
    assert (settings.grace_s, wrong) == (float(grace), ())


@pytest.mark.parametrize("settle", ["", "3", "4.999", "-5", "nan", "inf", "9999", "x", "1_0"])
def test_a_wrong_settle_is_the_usual_one(settle: str) -> None:
    settings, wrong = settings_of(settle=settle)
    assert settings.settle_s == 5
    one_sentence(wrong, "--settle", repr(settle), "5", "3600")


@pytest.mark.parametrize(
    ("settle", "grace", "is_wrong"), [("12", "15", True), ("9.9", "15", False), ("10", "15", True)]
)
def test_a_settle_that_leaves_no_read(settle: str, grace: str, is_wrong: bool) -> None:
    settings, wrong = settings_of(settle=settle, grace=grace)
    assert settings.settle_s == float(settle)
    assert len(wrong) == is_wrong
    if is_wrong:
        one_sentence(wrong, "--settle", settle, "10")


@pytest.mark.parametrize("engine", ["", "tgi", "vllm ", "vllm,sglang", "VLLM\n"])
def test_an_unknown_engine_means_both(engine: str) -> None:
    settings, wrong = settings_of(engine=engine)
    assert settings.engine is None
    one_sentence(wrong, "--engine", repr(engine), "vllm", "sglang")


@pytest.mark.parametrize(("word", "engine"), [("vllm", VLLM), ("vLLM", VLLM), ("sglang", SGLANG), ("SGLANG", SGLANG)])
def test_engines_in_any_case(word: str, engine: object) -> None:
    assert settings_of(engine=word)[0].engine is engine


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "//127.0.0.1:8000/metrics",
        "ftp://127.0.0.1/",
        "http://",
        "http://:8000/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:-1/",
        "http://127.0.0.1:0/metrics",
        "http://127.0.0.1:x/",
        "http://[::1/metrics",
        "http://user@127.0.0.1/",
        "http://:secret@127.0.0.1/",
        "http://a b/",
        "http://127.0.0.1:8000/\n",
        "http://example.com/metrics",
        "http://localhost.example.com/metrics",
        "http://127.0.0.1.example.com/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://10.0.0.6:8000/metrics",
        "http://[fd00::6]:8000/metrics",
        "http://169.254.169.254/latest",
        "http://münchen/",
        "http://" + "1" * 3000,
    ],
)
def test_a_wrong_url_is_discovery(url: str) -> None:
    settings, wrong = settings_of(urls=(url,))
    assert settings.urls == ()
    assert settings.url_was_wrong
    one_sentence(wrong, "--url")


def test_a_wrong_url_beside_a_right_one() -> None:
    settings, wrong = settings_of(urls=("http://10.0.0.5:8000", "http://nowhere/"))
    assert settings.urls == (ListenerUrl("http", "10.0.0.5", 8000),)
    assert settings.url_was_wrong
    one_sentence(wrong, "--url", "http://nowhere/")


@pytest.mark.parametrize("text", ["", "0", "-1", "1025", "2.0", "two", "١", "1_0", " 2", "1" * 5000, "000000019999"])
def test_wrong_api_servers(text: str) -> None:
    settings, wrong = settings_of(api_servers=text)
    assert settings.api_servers is None
    one_sentence(wrong, "--api-servers", "1024")


@given(st.integers(1, 1024))
def test_right_api_servers(count: int) -> None:
    assert read_api_servers(str(count)) == count


@pytest.mark.parametrize("peer", ["", "10.0.0.0/33", "10.0.0", "proxy", "fd00::/129", "10.0.0.0/255.0.255.0", "/8"])
def test_a_wrong_peer_is_no_peer(peer: str) -> None:
    settings, wrong = settings_of(ignore_peers=(peer, "10.0.0.7"))
    assert settings.ignored_peers == ((b"\x0a\0\0\7", 32),)
    one_sentence(wrong, "--ignore-peer", repr(peer))


@given(st.ip_addresses(), st.integers(0, 128))
def test_networks(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> None:
    bits = min(bits, address.max_prefixlen)
    packed, prefix = read_network(f"{address}/{bits}")
    network = ipaddress.ip_network((address, bits), strict=False)
    if len(packed) == len(address.packed):
        assert (packed, prefix) == (network.network_address.packed, bits)
    else:
        assert (b"\0" * 10 + b"\xff\xff" + packed, prefix + 96) == (network.network_address.packed, bits)


@pytest.mark.parametrize("word", ["", "xml", "JSON", "text "])
def test_a_wrong_log_format_is_text(word: str) -> None:
    settings, wrong = settings_of(log_format=word)
    assert not settings.log_json
    one_sentence(wrong, "--log-format", repr(word), "text", "json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30.0), ("3e1", 30.0), ("-0", 0.0), (".5", 0.5), ("+1.", 1.0), ("", None), ("nan", None), ("NaN", None),
        ("-inf", None), ("Infinity", None), ("1_000", None), ("1e400", None), ("٣", None), ("0x10", None),
    ],
)  # fmt: skip
def test_number(text: str, value: float | None) -> None:
    assert number(text) == value


@given(st.text())
def test_number_is_finite_or_none(text: str) -> None:
    value = number(text)
    assert value is None or math.isfinite(value)


@pytest.mark.parametrize(
    ("value", "leader"),
    [
        ("10.0.0.9", ListenerUrl("https", "10.0.0.9", 8100, "/m")),
        ("fd00::9", ListenerUrl("https", "fd00::9", 8100, "/m")),
        ("[fd00::9]", ListenerUrl("https", "fd00::9", 8100, "/m")),
        ("[fd00::9]:7", ListenerUrl("https", "fd00::9", 7, "/m")),
        ("10.0.0.9:7", ListenerUrl("https", "10.0.0.9", 7, "/m")),
        ("replica-0.headless", ListenerUrl("https", "replica-0.headless", 8100, "/m")),
        ("replica-0.headless:7", ListenerUrl("https", "replica-0.headless", 7, "/m")),
        ("http://replica-0", ListenerUrl("http", "replica-0", 80)),
        ("http://10.0.0.9:7/x", ListenerUrl("http", "10.0.0.9", 7, "/x")),
    ],
)
def test_a_leader_in_a_variable(value: str, leader: ListenerUrl) -> None:
    """What the value leaves out is as for this member's own listener."""
    settings, wrong = settings_of(urls=("https://127.0.0.1:8100/m",), leader_env="LEADER", env={"LEADER": value})
    assert wrong == ()
    assert (settings.watches_leader, settings.leader) == (True, leader)


@pytest.mark.parametrize(("engine", "port"), [("vllm", 8000), ("sglang", 30000)])
def test_a_leader_in_a_variable_without_a_url(engine: str, port: int) -> None:
    settings, _ = settings_of(engine=engine, leader_env="LEADER", env={"LEADER": "leader"})
    assert settings.leader == ListenerUrl("http", "leader", port)


@pytest.mark.parametrize("env", [{}, {"LEADER": ""}, {"LEADER": "a b"}, {"LEADER": "x:99999"}, {"LEADER": "http://"}])
def test_a_variable_without_a_leader_still_means_a_follower(env: dict[str, str]) -> None:
    settings, wrong = settings_of(leader_env="LEADER", env=env)
    assert (settings.watches_leader, settings.leader) == (True, None)
    one_sentence(wrong, "--leader-env", "LEADER")


@pytest.mark.parametrize("url", ["", "leader", "ftp://leader", "http://u:p@leader/", "http://leader:0"])
def test_a_wrong_leader_still_means_a_follower(url: str) -> None:
    settings, wrong = settings_of(leader=url, leader_env="LEADER", env={"LEADER": "10.0.0.9"})
    assert (settings.watches_leader, settings.leader) == (True, None)
    one_sentence(wrong, "--leader", repr(url))


def test_a_leader_may_be_anywhere() -> None:
    settings, wrong = settings_of(leader="https://replica-0.headless:8000/metrics")
    assert wrong == ()
    assert settings.leader == ListenerUrl("https", "replica-0.headless", 8000)


WORDS = st.none() | st.text(max_size=30) | st.sampled_from(["30", "vllm", "1e300", "http://127.0.0.1:1", "10.0.0.0/8"])


@given(
    st.builds(
        HookOptions,
        engine=WORDS,
        urls=st.lists(WORDS.filter(lambda word: word is not None), max_size=3).map(tuple),
        grace=WORDS,
        settle=WORDS,
        api_servers=WORDS,
        ignore_peers=st.lists(WORDS.filter(lambda word: word is not None), max_size=3).map(tuple),
        leader=WORDS,
        leader_env=WORDS,
        log_format=WORDS,
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
)
def test_no_word_makes_it_fail(options: HookOptions, env: dict[str, str]) -> None:
    settings, wrong = settings_of(options, env)
    assert all(sentence and len(sentence) < 1000 for sentence in wrong)
    assert settings.grace_s is None or math.isfinite(settings.grace_s)
    assert 5 <= settings.settle_s <= 3600
    assert all(url.host == "localhost" or own(url.host) for url in settings.urls)
    assert settings.watches_leader == (options.leader is not None or options.leader_env is not None)
