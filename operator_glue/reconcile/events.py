"""The reasons of the Events on a ModelDeployment, with what each tells. Plain data."""

from __future__ import annotations

from operator_glue.reconcile.conditions import Why
from operator_glue.retirement.reasons import Reason

EVENTS = {
    "ReplicasCreated": "Replicas were made.",
    "ReplicaReplaced": "A rollout deletes a replica; its successor comes when it has drained.",
    "MemberLost": "A replica of several Pods has lost one; the rest of it is deleted.",
    "DoubledMember": "Two Pods were in one place; the younger is deleted.",
    "CreateRefused": "The API server refuses a Pod (a quota, an admission policy); tried again later each time.",
    "SpecWarning": "What admission warns of.",
    Why.INVALID_SPEC.word: Why.INVALID_SPEC.sentence,
    Why.NAME_TAKEN.word: Why.NAME_TAKEN.sentence,
    Why.REFUSED.word: Why.REFUSED.sentence,
    "ForeignPod": "A Pod has the deployment's labels and is somebody else's; it is not counted and not touched.",
    "PodUnplaced": "A Pod is the deployment's and its labels name no replica; it is left alone.",
    "MemberUnreadable": "A Pod's member index was changed; its replica is left alone.",
    "StatusUnreadable": "Another hand wrote into status.retirement what cannot be read; it is put right.",
    "RetirementAdmitted": "The removal of a replica has begun.",
    "RetirementDisqualified": "Its serving label is gone.",
    "RetirementWithdrawing": "The routers are asked until none lists it; or one lists it again.",
    "RetirementDraining": "It is withdrawn; its engine is read.",
    "RetirementDeleting": "It is withdrawn and idle; its Pods are deleted.",
    "RetirementSettling": "Its Pods are gone.",
    "RetirementCompleted": "It is gone and its capacity is free.",
    "RetirementHeld": "Why a removal is held, when that has changed.",
    "RetirementWaiting": "Other removals wait for the one that runs.",
    "RetirementAborted": "A removal has ended without a delete, or its replica was ended by another hand.",
    "RetirementCancelled": "The spec names the replica again; it serves as before.",
    Reason.CAPACITY_RELEASE_UNOBSERVED.word: Reason.CAPACITY_RELEASE_UNOBSERVED.sentence,
    "RoutingNotRestored": "A router does not list a replica again that is wanted again.",
    "RetryIgnored": "drainagent.io/retirement-retry says nothing that can be done.",
    "Removing": "The deployment is being removed; its Pods drain.",
    "Removed": "Nothing of the deployment is left.",
}
