"""What an operator can set for sync."""

from typing import Annotated, Literal, Protocol

from msgspec import Meta, field

from tidelog.base.settings.kinds import Bytes, Count, Milliseconds, Secret, Section


class SyncSettings(Section, frozen=True, kw_only=True):
    """`[sync]`: the offline-first surface; it is served when a way to verify tokens is set."""

    jwt_secret: Secret = ""
    """Shared secret of HS256 tokens, at least 32 bytes."""

    jwt_key_file: str = ""
    """PEM public key or JWKS file for RS256, ES256 and EdDSA tokens."""

    jwt_algorithms: list[str] = field(default_factory=lambda: ["HS256"])
    """Accepted algorithms; `none` never is."""

    profiles: list[Literal["compatibility", "canonical"]] = field(
        default_factory=lambda: ["compatibility", "canonical"]
    )
    """Offered profiles: `compatibility` is the tree profile, `canonical` the event profile."""

    model_file: str = ""
    """JSON file with `tree_targets`, `schemas` and `model_version`: what may be written."""

    plugin: str = ""
    """The application's own rules, as `module:attribute`; see `tidelog.sync.plugin`."""

    plugin_budget_ms: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Processor time of the plug-in's `check` for one event. All writers wait meanwhile, so an
    event that uses more is refused, and the metric `tidelog_sync_plugin_failures` counts it."""

    heartbeat_timeout_ms: Milliseconds = 30_000
    """A client that sends no heartbeat for this long is closed; other traffic does not count."""

    max_batch_size: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Events in one submit."""

    sync_limit_min: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Smallest page of a sync; a smaller one is raised to it, or catching up takes for ever."""

    sync_limit_max: Annotated[int, Meta(ge=1, le=1000)] = 1000
    """Largest page of a sync: it is held in memory while it is sent."""

    max_message_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 1_048_576
    """Largest message that is processed; up to four times as much is answered, more is cut off."""

    max_message_values: Count = 100_000
    """JSON values in one message, in all arrays and objects. A megabyte can hold half a million,
    and everybody waits while they are read, compared and kept: up to two microseconds each."""

    max_partitions: Count = 10_000
    """Partitions in one sync, and those that one connection is told of. Each is looked up for every
    page, and is an entry in memory for as long as the connection lasts."""

    max_in_flight_drafts: Count = 200
    """Events of one connection received and not yet answered. Below `max_batch_size` it is also the
    most in one submit."""

    max_messages_per_second: Count = 200
    """Messages of one connection per second; more are dropped and answered `rate_limited`."""

    max_cached_bytes: Bytes = 268_435_456
    """About the memory for states of partitions kept for validation; the rest is derived from the
    log again when it is needed. 256 MiB hold about two million tree nodes and values."""

    @property
    def is_served(self) -> bool:
        """Whether there is a way to verify tokens."""
        return bool(self.jwt_secret or self.jwt_key_file)

    @property
    def batch_size(self) -> int:
        """Events in one submit: more than may be in flight could never be accepted."""
        return min(self.max_batch_size, self.max_in_flight_drafts)


class ServerSettings(Protocol):
    """What sync needs of the settings of a server."""

    @property
    def sync(self) -> SyncSettings:
        """Section `[sync]`."""

    @property
    def administration_token(self) -> str:
        """What opens administration; empty if nothing does."""
