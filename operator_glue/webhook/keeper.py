"""Where the webhooks' certificate comes from: a Secret that replicas share, or cert-manager's mounted files.

Each has ``check``, to be called at the start and then every CHECK_S: an error leaves what was served so far.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from operator_glue.kube import JSON_PATCH, SECRETS, Conflict, Invalid, Kube, NotFound, Object, Resource
from operator_glue.names import MANAGED_BY, MANAGED_BY_LABEL
from operator_glue.webhook.certificates import BadPairError, Pair, bundle, from_data, renewed, serving, to_data
from operator_glue.webhook.configuration import ca_patch

#: A Secret that was removed, or a configuration that was replaced without its CA bundle, is put right within this.
CHECK_S = 60.0
#: Of replicas that write one Secret at the same time, all but one lose each round.
_ROUNDS = 5

Use = Callable[[str, str], None]

_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(timezone.utc)


class OwnCertificates:
    """Made here, kept in a Secret; its CAs are patched into ``configurations`` (resource and name).

    ``names``: at which the API server reaches the webhooks. ``use``: takes certificate and key (WebhookServer.use).
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        secret: str,
        names: Sequence[str],
        configurations: Sequence[tuple[Resource, str]],
        use: Use,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._kube, self._namespace, self._secret = kube, namespace, secret
        self._names, self._configurations, self._use, self._now = tuple(names), tuple(configurations), use, now
        self._pairs: tuple[Pair, ...] = ()
        self._served: Pair | None = None

    async def check(self) -> None:
        """Renews what is due, serves what is to be served, patches what lacks our CA. KubeError."""
        now = self._now()
        self._pairs = await self._kept(now)
        pair = serving(self._pairs, self._names, now)
        if pair != self._served:
            self._use(pair.certificate, pair.key)
            self._served = pair
        trusted = bundle(self._pairs, now)
        for resource, name in self._configurations:
            await self._trust(resource, name, trusted)

    async def _kept(self, now: datetime) -> tuple[Pair, ...]:
        """The Secret's pairs after a renewal, if one was due: ours, or those of the replica that was faster."""
        for _ in range(_ROUNDS):
            try:
                found: Object | None = await self._kube.get(SECRETS, self._namespace, self._secret)
            except NotFound:
                found = None
            stored = self._stored(found)
            # Removed or damaged by another hand: what replicas serve is still trusted then.
            pairs = renewed(stored if stored else self._pairs, self._names, now)
            if pairs == stored:
                return pairs
            try:
                await self._write(found, pairs)
            except (Conflict, NotFound):
                continue
            return pairs
        raise Conflict(f"secret {self._secret} was changed by another hand {_ROUNDS} times in a row", 409)

    def _stored(self, found: Object | None) -> tuple[Pair, ...]:
        try:
            return from_data((found or {}).get("data") or {})
        except BadPairError as error:
            _log.error("secret %s is made anew: %s", self._secret, error)
            return ()

    async def _write(self, found: Object | None, pairs: Sequence[Pair]) -> None:
        if found is None:
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "metadata": {"name": self._secret, "labels": {MANAGED_BY_LABEL: MANAGED_BY}},
                "data": to_data(pairs),
            }
            await self._kube.create(SECRETS, self._namespace, body)
        else:  # under the resourceVersion that it was read with
            await self._kube.replace(SECRETS, self._namespace, self._secret, {**found, "data": to_data(pairs)})

    async def _trust(self, resource: Resource, name: str, trusted: str) -> None:
        try:
            found = await self._kube.get(resource, None, name)
            operations = ca_patch(found, trusted)
            if operations:
                await self._kube.patch(resource, None, name, operations, JSON_PATCH)
        except NotFound:
            _log.warning("%s %s is not there: nobody asks this webhook", resource.plural, name)
        except (Conflict, Invalid) as error:  # another replica was faster, or its list has changed: at the next check
            _log.info("%s %s: the CA bundle is not patched yet: %s", resource.plural, name, error)


class MountedCertificates:
    """cert-manager's tls.crt and tls.key, as the kubelet mounts its Secret; its cainjector patches the CA bundle."""

    def __init__(self, folder: Path, use: Use) -> None:
        self._folder, self._use = folder, use
        self._served: tuple[str, str] | None = None

    async def check(self) -> None:
        """Serves the files where they have changed. Half a pair, in the moment of a change, is left for later."""
        try:
            certificate, key = ((self._folder / name).read_text("ascii") for name in ("tls.crt", "tls.key"))
            if (certificate, key) != self._served:
                self._use(certificate, key)
                self._served = certificate, key
        except (OSError, ValueError) as error:
            _log.error("%s: %s", self._folder, error)
