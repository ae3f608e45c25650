"""What mesh counts, beside what every surface does."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class MeshMetrics:
    """Made once for each `Metrics`: `metrics.part(MeshMetrics)`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries = Counter(
            "tidelog_broker_deliveries",
            "Messages pushed to members, claimed from queues, posted to webhooks, acknowledged",
            ["step"],
            registry=registry,
        )
        self.fingerprint_mismatches = Counter(
            "tidelog_broker_dedupe_fingerprint_mismatch",
            "Sends whose fingerprint on arrival is not the one their daemon computed",
            ["client_id", "mesh_id"],
            registry=registry,
        )
        self.rate_refusals = Counter(
            "tidelog_broker_rate_limit_rejection",
            "Sends refused because the window of their mesh was full",
            ["mesh_id"],
            registry=registry,
        )
        self.concurrent_connections = Counter(
            "tidelog_broker_member_concurrent_connection",
            "Times that two daemons were connected with one member's key",
            ["mesh_id", "policy"],
            registry=registry,
        )
        self.units_without_message = Counter(
            "tidelog_broker_rate_limit_consumed_then_b2_rejected",
            "Sends that were counted by the rate limiter and had no destination",
            ["mesh_id"],
            registry=registry,
        )
        self.misconfigurations = Counter(
            "tidelog_broker_dedupe_misconfig",
            "Meshes found that keep messages for longer than their ids",
            ["mesh_id"],
            registry=registry,
        )
        self.orphan_checks = Counter(
            "tidelog_broker_dedupe_orphan_check",
            "Comparisons of the stored relations that were completed",
            registry=registry,
        )
        self.orphans = Gauge(
            "tidelog_broker_dedupe_orphan_found",
            "Rows without their counterpart in the last comparison",
            registry=registry,
        )
        self.atomicity_violations = Gauge(
            "tidelog_broker_atomicity_violation_found",
            "Rows without their counterpart, by the rule that is broken (mesh 6.5)",
            ["rule"],
            registry=registry,
        )
