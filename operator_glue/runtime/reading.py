"""A ModelDeployment as the operator works on it: its spec checked as admission checks it, its roles planned.

What admission let in before the definition was tightened, or while the webhook was away, is found here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from operator_glue.admission import review
from operator_glue.facts import ClusterFacts
from operator_glue.model import API_VERSION, KIND, ModelDeployment
from operator_glue.names import ROLL_ANNOTATION
from operator_glue.reconcile.objects import Wanted, wanted_objects
from operator_glue.reconcile.pods import WantedRole
from operator_glue.render import RolePlan, role_plan
from operator_glue.warnings import Warning
from operator_glue.webhook.review import warnings


@dataclass(frozen=True)
class Planned:
    """``deployment``: None where ``fault``, a sentence, says why the spec is refused. ``plans``: by role."""

    fault: str | None
    deployment: ModelDeployment | None
    plans: Mapping[str, RolePlan]
    wanted: Wanted
    warnings: tuple[Warning, ...] = ()

    @property
    def roles(self) -> tuple[WantedRole, ...]:
        return tuple(
            WantedRole(plan.role.name, plan.role.replicas, plan.role.size, plan.spec_hash)
            for plan in self.plans.values()
        )


class Reader:
    """Keeps what it has read: a spec is checked once, in a thread, since the largest takes seconds."""

    def __init__(self, facts: Callable[[], ClusterFacts]) -> None:
        self._facts = facts
        self._known: dict[str, tuple[Any, Planned]] = {}

    async def read(self, thing: Mapping[str, Any]) -> Planned:
        metadata, facts = thing["metadata"], self._facts()
        uid = str(metadata["uid"])
        state = (metadata.get("generation"), (metadata.get("annotations") or {}).get(ROLL_ANNOTATION), facts)
        known = self._known.get(uid)
        if known is None or known[0] != state:
            self._known[uid] = known = (state, await asyncio.to_thread(planned, thing, facts))
        return known[1]

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


def planned(thing: Mapping[str, Any], facts: ClusterFacts) -> Planned:
    """``thing``: as the API server gives it, in a list too, where items have no kind. Pure."""
    found = review({**thing, "apiVersion": API_VERSION, "kind": KIND})
    if found.deployment is None:
        more = len(found.faults) - 1
        sentence = found.faults[0].sentence + (f" (and {more} more)" if more else "")
        return Planned(sentence, None, {}, Wanted(()))
    deployment = found.deployment
    plans = {role.name: role_plan(deployment, role, facts) for role in deployment.spec.roles}
    wanted = wanted_objects(deployment, plans.values(), facts)
    return Planned(None, deployment, plans, wanted, warnings(deployment, facts))
