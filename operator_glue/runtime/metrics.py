"""What Prometheus reads of the operator. Names are kept stable: others alert on them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Seconds; a pass is milliseconds, with member reads up to five seconds.
_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Seconds; the phases' budgets are among them.
_PHASE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 300.0, 600.0, 1800.0, 3600.0)
_ANSWER_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """One set per process. ``registry``: what is served."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.leading = Gauge("drainagent_leading", "1 while this process holds the Lease.", registry=registry)
        self.passes = Histogram(
            "drainagent_reconcile_seconds",
            "Duration of a pass over a ModelDeployment.",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self.pass_errors = Counter(
            "drainagent_reconcile_errors",
            "Passes that ended in an error and are tried again.",
            ["cause"],
            registry=registry,
        )
        self.queue = Gauge("drainagent_queue_depth", "ModelDeployments that wait for a pass.", registry=registry)
        self.api_errors = Counter(
            "drainagent_api_errors",
            "Calls that the API server refused or left unanswered.",
            ["status"],
            registry=registry,
        )
        self.retirements = Counter(
            "drainagent_retirements", "Removals that have ended.", ["state", "reason"], registry=registry
        )
        self.phases = Histogram(
            "drainagent_retirement_phase_seconds",
            "How long a removal was in a phase.",
            ["state"],
            buckets=_PHASE_BUCKETS,
            registry=registry,
        )
        self.reads = Counter(
            "drainagent_member_reads",
            "Reads of a member's gauges, by what they came to.",
            ["verdict"],
            registry=registry,
        )
        self.held = Gauge(
            "drainagent_retirement_held",
            "1 while a removal is held or kept as Aborted, by its reason.",
            ["namespace", "name", "role", "ordinal", "reason"],
            registry=registry,
        )
        self.blocked = Gauge(
            "drainagent_retirement_blocked",
            "1 while the condition RetirementBlocked is true.",
            ["namespace", "name", "reason"],
            registry=registry,
        )
        self.pods = Counter("drainagent_pod_writes", "Pods that were made and deleted.", ["write"], registry=registry)
        self.webhooks = Counter(
            "drainagent_webhook_answers", "Admission reviews answered.", ["webhook", "answer"], registry=registry
        )
        self.webhook_seconds = Histogram(
            "drainagent_webhook_seconds",
            "Time to an answer of a webhook.",
            ["webhook"],
            buckets=_ANSWER_BUCKETS,
            registry=registry,
        )

    def described(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """Name as it is exposed, kind, labels and text of each."""
        found = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                (family,) = metric.describe()
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found.append((name, family.type, tuple(metric._labelnames), family.documentation))
        return found
