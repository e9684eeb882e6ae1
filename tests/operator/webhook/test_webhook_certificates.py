"""Pairs through the years, and replicas that share them in one Secret."""

from __future__ import annotations

import asyncio
import base64
import copy
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

sys.path.insert(0, str(Path(__file__).parent))

from operator_glue.kube import MUTATING_WEBHOOKS, Conflict, Kube, NotFound, Resource
from operator_glue.webhook.certificates import (
    LIFE,
    RENEW_LEFT,
    SPREAD,
    BadPairError,
    Pair,
    bundle,
    due,
    from_data,
    made_at,
    make,
    renewed,
    serving,
    to_data,
)
from operator_glue.webhook.configuration import MUTATING_NAME, Service, mutating_configuration
from operator_glue.webhook.keeper import MountedCertificates, OwnCertificates

NAMES = ("webhook.drainagent-system.svc", "10.89.2.1")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def cas(pem: str) -> int:
    return len(x509.load_pem_x509_certificates(pem.encode()))


def test_a_pair() -> None:
    pair = make(NAMES, NOW)
    assert made_at(pair) == NOW
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAMES[0]]
    assert [str(item) for item in names.get_values_for_type(x509.IPAddress)] == [NAMES[1]]
    assert make(NAMES, NOW).ca != pair.ca


def test_a_secrets_data() -> None:
    pairs = (make(NAMES, NOW), make(NAMES, NOW + timedelta(days=60)))
    data = to_data(pairs)
    assert sorted(data) == ["0-ca.crt", "0-tls.crt", "0-tls.key", "1-ca.crt", "1-tls.crt", "1-tls.key"]
    assert from_data(data) == pairs
    assert from_data({**data, "README": "x"}) == pairs
    assert from_data({}) == ()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("0-ca.crt", None, "0-ca.crt is missing"),
        ("0-tls.crt", "!", "0-tls.crt is no text in base64"),
        ("0-tls.crt", "", "pair 0 cannot be read"),
        ("0-tls.key", base64.b64encode(make(NAMES, NOW).key.encode()).decode(), "is not the key of"),
        ("0-ca.crt", base64.b64encode(make(NAMES, NOW).ca.encode()).decode(), "cannot be read"),
    ],
)
def test_a_secret_that_another_hand_changed(key: str, value: str | None, words: str) -> None:
    data: dict[str, Any] = to_data([make(NAMES, NOW)])
    del data[key]
    if value is not None:
        data[key] = value
    with pytest.raises(BadPairError, match=words):
        from_data(data)


def test_a_renewal_from_hour_to_hour_never_serves_what_was_not_trusted() -> None:
    """An API server and other replicas that are SPREAD behind still trust what is served."""
    pairs: tuple[Pair, ...] = ()
    bundles: dict[datetime, str] = {}
    served: dict[datetime, Pair] = {}
    now = NOW
    while now < NOW + 3 * LIFE:
        pairs = renewed(pairs, NAMES, now)
        served[now], bundles[now] = serving(pairs, NAMES, now), bundle(pairs, now)
        now += timedelta(hours=6) if now.hour else timedelta(minutes=5)
    assert len(set(served.values())) == 5
    for when, pair in served.items():
        for at, trusted in bundles.items():
            if when - SPREAD <= at <= when + SPREAD:
                assert pair.ca in trusted
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        assert certificate.not_valid_after_utc - when > RENEW_LEFT - timedelta(hours=7)
    assert {cas(trusted) for trusted in bundles.values()} == {1, 2}


def test_due() -> None:
    pair = make(NAMES, NOW)
    assert due([], NAMES, NOW)
    assert not due([pair], NAMES, NOW + LIFE - RENEW_LEFT - timedelta(seconds=1))
    assert due([pair], NAMES, NOW + LIFE - RENEW_LEFT)
    assert due([pair], ["another.name"], NOW)
    moved = renewed([pair], ["another.name"], NOW)
    assert len(moved) == 2
    assert serving(moved, ["another.name"], NOW) == moved[1]
    assert renewed([pair], NAMES, NOW + LIFE)[0] != pair
    with pytest.raises(ValueError, match=r"another\.name"):
        serving([pair], ["another.name"], NOW)


# ---- the Secret


class FakeKube(Kube):
    """Secrets and configurations with resource versions. ``before_write``: another hand, just before a write."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        self.version = 0
        self.writes = 0
        self.before_write: Callable[[], Coroutine[Any, Any, None]] | None = None

    def _put(self, key: tuple[str, str], body: Any) -> Any:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = body
        return body

    async def _written(self) -> None:
        hand, self.before_write = self.before_write, None
        if hand is not None:
            await hand()
        self.writes += 1

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Any:  # noqa: ARG002
        try:
            return copy.deepcopy(self.objects[resource.plural, name])
        except KeyError:
            raise NotFound("not found", 404) from None

    async def create(self, resource: Resource, namespace: str | None, body: Any) -> Any:  # noqa: ARG002
        await self._written()
        if (resource.plural, body["metadata"]["name"]) in self.objects:
            raise Conflict("exists", 409)
        return self._put((resource.plural, body["metadata"]["name"]), body)

    async def replace(self, resource: Resource, namespace: str | None, name: str, body: Any) -> Any:
        assert namespace == "drainagent-system"
        await self._written()
        if self.objects[resource.plural, name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("changed", 409)
        return self._put((resource.plural, name), body)

    async def patch(self, resource: Resource, namespace: str | None, name: str, body: Any, *_: Any, **__: Any) -> Any:
        assert namespace is None
        found = copy.deepcopy(self.objects[resource.plural, name])
        for operation in body:
            index = int(operation["path"].split("/")[2])
            if operation["op"] == "add":
                found["webhooks"][index]["clientConfig"]["caBundle"] = operation["value"]
        return self._put((resource.plural, name), found)


class Replica:
    """One process. ``clock``: shared, a list of one."""

    def __init__(self, kube: FakeKube, clock: list[datetime]) -> None:
        self.served: list[str] = []
        self.keeper = OwnCertificates(
            kube,
            "drainagent-system",
            "webhook",
            NAMES,
            [(MUTATING_WEBHOOKS, MUTATING_NAME)],
            lambda certificate, _: self.served.append(certificate),
            lambda: clock[0],
        )

    def check(self) -> None:
        asyncio.run(self.keeper.check())


def cluster() -> FakeKube:
    kube = FakeKube()
    kube._put((MUTATING_WEBHOOKS.plural, MUTATING_NAME), mutating_configuration(Service("a", "b"), "a"))
    return kube


def trusted(kube: FakeKube) -> str:
    (found,) = {
        hook["clientConfig"]["caBundle"] for hook in kube.objects[MUTATING_WEBHOOKS.plural, MUTATING_NAME]["webhooks"]
    }
    return base64.b64decode(found).decode()


def test_two_replicas_start_at_once_and_the_loser_reads() -> None:
    kube, clock = cluster(), [NOW]
    first, second = Replica(kube, clock), Replica(kube, clock)
    kube.before_write = first.keeper.check
    second.check()
    assert first.served == second.served
    assert cas(trusted(kube)) == 1
    writes = kube.writes
    second.check()
    first.check()
    assert (kube.writes, len(first.served)) == (writes, 1)


def test_a_renewal_of_two_replicas() -> None:
    kube, clock = cluster(), [NOW]
    first, second = Replica(kube, clock), Replica(kube, clock)
    first.check()
    second.check()
    clock[0] += LIFE - RENEW_LEFT
    kube.before_write = first.keeper.check
    second.check()
    assert cas(trusted(kube)) == 2
    assert len(first.served) == len(second.served) == 1  # so far
    clock[0] += SPREAD
    first.check()
    second.check()
    assert first.served == second.served
    assert len(first.served) == 2
    clock[0] += RENEW_LEFT
    first.check()
    assert cas(trusted(kube)) == 1


@pytest.mark.parametrize("data", [None, {"0-ca.crt": "!"}, {}])
def test_a_secret_that_was_removed_or_damaged_is_written_anew_as_it_was(data: Any) -> None:
    kube, clock = cluster(), [NOW]
    replica = Replica(kube, clock)
    replica.check()
    before = kube.objects["secrets", "webhook"]["data"]
    if data is None:
        del kube.objects["secrets", "webhook"]
    else:
        kube.objects["secrets", "webhook"]["data"] = data
    replica.check()
    assert kube.objects["secrets", "webhook"]["data"] == before
    assert len(replica.served) == 1


def test_a_configuration_that_was_replaced_gets_its_ca_again() -> None:
    kube, clock = cluster(), [NOW]
    replica = Replica(kube, clock)
    replica.check()
    kube._put((MUTATING_WEBHOOKS.plural, MUTATING_NAME), mutating_configuration(Service("a", "b"), "a"))
    replica.check()
    assert cas(trusted(kube)) == 1
    del kube.objects[MUTATING_WEBHOOKS.plural, MUTATING_NAME]
    replica.check()  # said in the log


# ---- cert-manager's files


def test_mounted_files_are_served_when_they_change(tmp_path: Path) -> None:
    served: list[tuple[str, str]] = []

    def use(certificate: str, key: str) -> None:
        if certificate == "half":
            raise ValueError("they do not fit")
        served.append((certificate, key))

    mounted = MountedCertificates(tmp_path, use)
    asyncio.run(mounted.check())  # not there yet
    for certificate, key in (("a", "b"), ("a", "b"), ("half", "c"), ("c", "d")):
        (tmp_path / "tls.crt").write_text(certificate)
        (tmp_path / "tls.key").write_text(key)
        asyncio.run(mounted.check())
    assert served == [("a", "b"), ("c", "d")]
