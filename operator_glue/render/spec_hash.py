"""What the user's spec decides of a role's Pods, as a hash: another one replaces the role's replicas. Pure.

Over what goes into a Pod and not over the Pod, so that neither a newer renderer nor another agent image changes it. A
field at its default is left out: a field that a later release of the resource adds changes no hash.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from operator_glue.model import ModelDeployment, Role
from operator_glue.names import ROLL_ANNOTATION
from operator_glue.render.command import grace_s, image_of, is_direct_decoder
from operator_glue.render.llm_d import llm_d_role, prefill_tls

#: What of a role is not in its Pods, or is put into the hash as what becomes of it.
_ELSEWHERE = {"name", "replicas", "image", "termination_grace_period_seconds"}


def spec_hash(deployment: ModelDeployment, role: Role) -> str:
    """16 hexadecimal digits. The same for grace 30 and unset, and whatever ``replicas`` says."""
    decided: dict[str, Any] = {
        **role.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_ELSEWHERE),
        "engine": deployment.spec.engine.name.value,
        "image": image_of(deployment, role),
        "terminationGracePeriodSeconds": grace_s(role),
    }
    if role.command is None:
        decided["model"] = deployment.spec.model.name
    label = llm_d_role(deployment, role)
    if label is not None:
        decided["llm-d.ai/role"] = label
    if is_direct_decoder(deployment, role):
        decided["routingProxy"] = {"prefillTls": prefill_tls(deployment)}
    roll = deployment.metadata.annotations.get(ROLL_ANNOTATION)
    if roll is not None:
        decided["roll"] = roll
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
