"""What an operator can set for the broker; `protocol.per_mesh_settings` are those of one mesh."""

from typing import Annotated, Protocol

from msgspec import Meta

from tidelog.base.errors import ConfigError
from tidelog.base.net import authority
from tidelog.base.settings.kinds import Count, Milliseconds, Seconds, Section, one_by_one


class MeshSettings(Section, frozen=True, kw_only=True):
    """`[mesh]`: the broker; it is served when `admin_token` is set, and under `dev`."""

    hello_timeout_ms: Milliseconds = 10_000
    """A connection that has not proved its key for so long is closed with 4401 (mesh 9.3)."""

    public_hosts: list[str] | str = ""
    """Every address at which daemons dial this broker, as `broker.example` or `10.0.0.5:8080`: a
    list, or text with commas. Needed behind a proxy, and where it is dialled by name. Empty for
    the address that a connection came in at (mesh 9.7)."""

    require_hello_2: bool = False
    """Whether members must sign where they dialled: hellos of version 1 and tokens without `host`,
    which another broker could have passed on, are refused (mesh 9.7)."""

    max_inline_bytes: Annotated[int, Meta(ge=1024, le=8_388_608)] = 65_536
    """Largest body of a send. Each is stored, and copied to every receiver; daemons are told it."""

    max_in_flight_sends: Annotated[int, Meta(ge=1, le=4096)] = 256
    """Sends of one connection received and not yet answered; then reading from it pauses. A daemon
    has 32 under way."""

    rate_limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 6000
    """Sends of a new mesh in one window, all members together; more get 429 (mesh 6.3)."""

    rate_window_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 60_000
    """Window of a new mesh."""

    dedupe_retention_days: Annotated[int, Meta(ge=7, le=36_500)] = 365
    """How long a new mesh remembers ids. Daemons refuse less than 7 days (mesh 9.2)."""

    invite_lifetime_seconds: Seconds = 86_400
    """How long an invite can be used unless it says otherwise; at most a day."""

    max_members: Count = 10_000
    """Members of one mesh."""

    max_topics: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Topics of one mesh; all of them are in one answer."""

    max_topics_per_member: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Topics that one member has made, or it could leave none of `max_topics` to the others."""

    max_topic_subscribers: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Subscribers of one topic. Each gets a row in the transaction of every message, and all
    writers wait for that."""

    max_queues: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Queues of one mesh."""

    max_queues_per_member: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Queues that one member has made."""

    max_webhooks: Annotated[int, Meta(ge=1, le=1000)] = 20
    """Webhooks of one mesh; like subscribers, each costs a row for every message."""

    max_open_invites: Count = 1000
    """Invites of one mesh that can still be used."""

    lease_ms: Milliseconds = 30_000
    """How long a delivery belongs to whom it was pushed to; without an acknowledgement it is then
    pushed again (mesh 7.1)."""

    reaper_interval_ms: Milliseconds = 15_000
    """How often leases that have ended are looked for."""

    max_in_flight_deliveries: Annotated[int, Meta(ge=1, le=900)] = 64
    """Messages pushed to one connection and not yet acknowledged. Below
    `limits.send_buffer_messages`, or a push would look like a slow reader."""

    webhook_timeout_ms: Milliseconds = 10_000
    """How long an endpoint may take to respond (mesh 7.4)."""

    webhook_connections: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Endpoints that are posted to at the same time; each gets one message after the other."""

    webhook_allow_private: bool = False
    """Whether endpoints may be on this machine or in a private network. Whoever may add endpoints
    could otherwise make the server ask whatever only the server reaches."""

    retention_interval_seconds: Seconds = 3600
    """How often messages and ids are looked for whose time is over (mesh 6.4)."""

    orphan_check_interval_seconds: Seconds = 86_400
    """How often the stored relations are compared (mesh 6.5)."""

    def __post_init__(self) -> None:
        """Refuse what is not an address before anything is opened."""
        for listed in self.listed_hosts:
            try:
                authority.read(listed)
            except ValueError:
                raise ConfigError(
                    f"mesh.public_hosts: {listed[:100]!r} is not an address that daemons can "
                    "dial. Write "
                    "broker.example, broker.example:8443 or [2001:db8::1]:8080, without https://"
                ) from None

    @property
    def listed_hosts(self) -> tuple[str, ...]:
        """`public_hosts`, one by one."""
        return one_by_one(self.public_hosts)


class ServerSettings(Protocol):
    """What the broker needs of all the settings of a server."""

    @property
    def mesh(self) -> MeshSettings:
        """Section `[mesh]`."""

    @property
    def administration_token(self) -> str:
        """What opens administration; empty if nothing does."""

    @property
    def host(self) -> str:
        """The address that the server listens on."""
