"""The closed list of reasons of the retirement protocol, a sentence each. The docs' table is made from it. Pure."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """What a reason does to the removal it stands at."""

    HOLDS = "holds"
    REFUSES = "refuses"
    GOES_ON = "goes on"
    ENDS = "ends"


class Reason(Enum):
    """Why a removal is where it is: the CamelCase word, what it does, and what it means for the one who reads it.

    Holds and refusals both end as Aborted when a budget does. A hold can go away by itself before that; a refusal does
    not, since it is about what the replica was deployed as.
    """

    # ---- where the removal stands
    ADMITTED = ("Admitted", Effect.GOES_ON, "The removal has begun; nothing has been touched.")
    WAITING_FOR_BASELINE = (
        "WaitingForBaseline",
        Effect.GOES_ON,
        "Each Pod of the router is asked once while it still lists the replica, since an absence proves something only "
        "after a presence.",
    )
    WITHDRAWING = ("Withdrawing", Effect.GOES_ON, "The serving label is being taken away.")
    WAITING_FOR_ROUTERS = (
        "WaitingForRouters",
        Effect.GOES_ON,
        "The serving label is gone; the router's own lists have to be without the replica.",
    )
    WITHDRAWN = ("Withdrawn", Effect.GOES_ON, "No router lists the replica; its engine is being read.")
    PROVING_AGAIN = (
        "ProvingAgain",
        Effect.GOES_ON,
        "The engine has read idle twice; the routers are asked once more before anything is deleted.",
    )
    DRAINED = ("Drained", Effect.GOES_ON, "Withdrawn and idle; the Pods are being deleted.")
    EVIDENCE_STALE = (
        "EvidenceStale",
        Effect.GOES_ON,
        "A pass was cut before the first delete, and what was proven may hold no longer: it is proven anew.",
    )
    WAITING_FOR_PODS = ("WaitingForPods", Effect.GOES_ON, "The Pods are deleted and drain by their hooks.")
    WAITING_FOR_RELEASE = (
        "WaitingForRelease",
        Effect.GOES_ON,
        "The Pods are gone; the Workload's end is awaited, which frees the quota.",
    )
    SCALED_UP_AGAIN = (
        "ScaledUpAgain",
        Effect.GOES_ON,
        "The spec names the replica again: its serving label and its routing are being restored.",
    )
    RETRIED = ("Retried", Effect.GOES_ON, "A retry was asked for; the removal begins anew.")

    # ---- how it ends
    COMPLETED = ("Completed", Effect.ENDS, "The replica is gone and its capacity is free.")
    CAPACITY_RELEASE_UNOBSERVED = (
        "CapacityReleaseUnobserved",
        Effect.ENDS,
        "The Pods are gone; that the Workload released its quota was not seen in time.",
    )
    TARGET_GONE = (
        "TargetGone",
        Effect.ENDS,
        "Every Pod of the replica was ended by another hand; there is nothing left to retain.",
    )
    DELETE_PENDING = (
        "DeletePending",
        Effect.HOLDS,
        "A deleted Pod is still there a minute after its grace period. Deleting does not abort.",
    )

    # ---- the replica as it is deployed
    PREFILL_DECODE = (
        "PrefillDecode",
        Effect.REFUSES,
        "One half of a prefill/decode pair: nothing proves that no request is about to be handed to it.",
    )
    TAKE_OVER = (
        "TakeOver",
        Effect.HOLDS,
        "The role takes its command line over: no endpoint is rendered that could be read.",
    )
    UNKNOWN_ENGINE = ("UnknownEngine", Effect.REFUSES, "The command line starts no engine whose gauges are known.")
    UNREADABLE_COMMAND = (
        "UnreadableCommand",
        Effect.HOLDS,
        "What decides whether this is one half of a pair could not be read from the command line.",
    )
    NO_LEADER = ("NoLeader", Effect.HOLDS, "No member of the replica carries index 0.")
    SEVERAL_LEADERS = ("SeveralLeaders", Effect.HOLDS, "Several members of the replica carry index 0.")
    MEMBERS_DISAGREE = ("MembersDisagree", Effect.HOLDS, "The members of the replica disagree on their configuration.")
    WRONG_SIZE = ("WrongSize", Effect.HOLDS, "The replica has not the number of members that it was deployed with.")
    AMBIGUOUS_LISTENER = (
        "AmbiguousListener",
        Effect.HOLDS,
        "The member uses its node's network, and another Pod there declares the same port, or who does is not known.",
    )
    LISTENER_UNKNOWN = (
        "ListenerUnknown",
        Effect.HOLDS,
        "The member's scrape annotations name no listener on which its engine could be read.",
    )
    NO_AGENT = ("NoAgent", Effect.HOLDS, "The member has no drain agent that could read its engine.")
    PROXIED_LISTENER = (
        "ProxiedListener",
        Effect.HOLDS,
        "Another container of the Pod runs beside the engine and may proxy its port: the socket table does not show "
        "the proxy's clients.",
    )

    # ---- the router's views
    NO_ROUTER = (
        "NoRouter",
        Effect.HOLDS,
        "Without a router nothing outside of the replica shows whether clients are still connected to it.",
    )
    ROUTER_MISSING = ("RouterMissing", Effect.HOLDS, "The router has no Pod that could be asked.")
    ROUTER_UNREACHABLE = ("RouterUnreachable", Effect.HOLDS, "A Pod of the router does not answer.")
    ROUTER_REFUSED = ("RouterRefused", Effect.HOLDS, "A Pod of the router does not let the operator see its list.")
    ROUTER_UNREADABLE = (
        "RouterUnreadable",
        Effect.HOLDS,
        "A Pod of the router answered with something else than its list.",
    )
    ROUTER_TERMINATING = (
        "RouterTerminating",
        Effect.HOLDS,
        "A Pod of the router is ending and may still pick from a frozen list.",
    )
    ROUTER_STALE = ("RouterStale", Effect.HOLDS, "The last list of a Pod of the router is too old to count.")
    ROUTER_RESTARTED = (
        "RouterRestarted",
        Effect.HOLDS,
        "A Pod of the router began anew; its list has to equal the replicas that are left, twice.",
    )
    ROUTER_NEVER_LISTED = (
        "RouterNeverListed",
        Effect.HOLDS,
        "A Pod of the router was never seen to list the replica, so that its absence proves nothing.",
    )
    ROUTER_DISAGREES = ("RouterDisagrees", Effect.HOLDS, "The lists of one Pod of the router contradict each other.")
    ROUTER_NOT_SYNCED = ("RouterNotSynced", Effect.HOLDS, "A Pod of the router has not read its pool yet.")
    ROUTER_LISTS_TARGET = ("RouterListsTarget", Effect.HOLDS, "A Pod of the router still lists the replica.")
    RECENT_DISPATCH = (
        "RecentDispatch",
        Effect.HOLDS,
        "The router sent a request to the replica since it was last asked.",
    )
    ENDPOINT_LISTED = (
        "EndpointListed",
        Effect.HOLDS,
        "An EndpointSlice names the replica, or did a moment ago.",
    )

    # ---- reading the engine
    BUSY = ("Busy", Effect.HOLDS, "Work is in flight.")
    IDLE_ONCE = ("IdleOnce", Effect.HOLDS, "The engine has read idle; it has to once more.")
    INCOMPLETE_ENVELOPE = ("IncompleteEnvelope", Effect.HOLDS, "Some expected gauges are missing.")
    INVALID_SAMPLE = ("InvalidSample", Effect.HOLDS, "A gauge is not a finite number of 0 or more.")
    ENGINES_MISSING = (
        "EnginesMissing",
        Effect.HOLDS,
        "The page does not show as many engines as the command line starts.",
    )
    SERIES_CHANGED = ("SeriesChanged", Effect.HOLDS, "The two reads did not see the same set of series.")
    IN_FLIGHT_UNREADABLE = (
        "InFlightUnreadable",
        Effect.HOLDS,
        "Neither the socket table nor a request counter could be read in the member.",
    )
    LISTENER_UNMEASURABLE = (
        "ListenerUnmeasurable",
        Effect.HOLDS,
        "The engine's listener refused the read, failed its TLS handshake or answered with an error.",
    )
    LISTENER_UNCLEAR = (
        "ListenerUnclear",
        Effect.HOLDS,
        "The engine answered late, or with something that is no whole metrics page.",
    )
    WRONG_ENGINE = (
        "WrongEngine",
        Effect.HOLDS,
        "Another engine or another listener answered than the member declares.",
    )
    CLIENTS_CONNECTED = (
        "ClientsConnected",
        Effect.HOLDS,
        "Clients are connected to the engine; without a router only an empty socket table proves a withdrawal.",
    )
    EXEC_FORBIDDEN = ("ExecForbidden", Effect.HOLDS, "The operator may not run the agent in the member (pods/exec).")
    EXEC_FAILED = ("ExecFailed", Effect.HOLDS, "The agent could not be started in the member.")
    EXEC_TIMED_OUT = ("ExecTimedOut", Effect.HOLDS, "The whole read did not end within its bound.")
    EXEC_CUT = ("ExecCut", Effect.HOLDS, "The session ended before the envelope did.")
    EXEC_TOO_LARGE = ("ExecTooLarge", Effect.HOLDS, "The member answered with more than the bound on one read.")
    AGENT_MISSING = ("AgentMissing", Effect.HOLDS, "The agent is not in the member's container.")
    NOT_AN_ENVELOPE = ("NotAnEnvelope", Effect.HOLDS, "The member answered with something that is no envelope.")
    CONTAINER_RESTARTED = (
        "ContainerRestarted",
        Effect.HOLDS,
        "The engine's container has restarted: a fresh process cannot speak for the work of the one before.",
    )
    CONTAINER_NOT_RUNNING = ("ContainerNotRunning", Effect.HOLDS, "The engine's container is not running.")
    MEMBER_CHANGED = (
        "MemberChanged",
        Effect.HOLDS,
        "The member changed during the read: its container, address or annotations.",
    )
    MEMBER_TERMINATING = (
        "MemberTerminating",
        Effect.HOLDS,
        "A member is being deleted by another hand; it drains by its hook.",
    )
    MEMBER_GONE = ("MemberGone", Effect.HOLDS, "A member is gone, and others of the replica are still there.")
    MEMBER_REPLACED = ("MemberReplaced", Effect.HOLDS, "Another Pod than the one captured answers under its name.")

    def __init__(self, word: str, effect: Effect, sentence: str) -> None:
        self.word = word
        self.effect = effect
        self.sentence = sentence


def reason_by_word(word: str | None) -> Reason | None:
    """The reason of this word; None when there is none."""
    return _BY_WORD.get(word or "")


_BY_WORD = {reason.word: reason for reason in Reason}
