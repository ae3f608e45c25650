"""What an operator can set for a daemon, in `daemon.toml` or `TIDELOG_DAEMON_*` variables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from tidelog.base.settings import reading as config
from tidelog.base.settings.kinds import Bytes, Count, Milliseconds, Section
from tidelog.base.settings.reading import Loaded
from tidelog.daemon.uplink.broker_address import dialled
from tidelog.mesh.protocol.negotiation import REQUIRED
from tidelog.mesh.protocol.policy import REQUEST_TIMEOUT_MS
from tidelog.mesh.protocol.slug import PATTERN as SLUG_PATTERN

FILE_NAME = "daemon.toml"
"""In the data directory."""

PREFIX = "TIDELOG_DAEMON_"

Slug = Annotated[str, Meta(pattern=rf"^{SLUG_PATTERN}\Z")]
"""Names a mesh in paths."""


class OutboxSettings(Section, frozen=True, kw_only=True):
    """`[outbox]`: how much may wait, and for how long."""

    budget_bytes: Bytes = 5_000_000_000
    """Content of messages that are not delivered; at 95 % of it and above no send is accepted. At
    half of it, delivered messages lose their content, the oldest first."""

    keep_delivered_hours: Count = 168
    """How long the content of a delivered message is kept: a broker that is restored from a backup
    may have lost the message, and it can be sent again while its content is here."""

    max_queue_size: Count = 10_000
    """Rows that wait for the broker; a second measure of the same levels. A broker that is away
    for a day must not be met by a million messages at once."""

    max_age_hours_override: int | None = None
    """Hours after which a row is given up, instead of what the broker's dedupe window gives. It is
    checked against that window at every negotiation."""


class InboxSettings(Section, frozen=True, kw_only=True):
    """`[inbox]`: what is done with messages that were received."""

    full_text_search: bool = False
    """Whether `/v1/inbox/search` finds messages by their words. The index takes about as much disk
    as the messages, and every delivery waits for it."""


class DiskSettings(Section, frozen=True, kw_only=True):
    """`[disk]`: what the daemon leaves to others."""

    reserved_bytes: Bytes = 268_435_456
    """Free space that is never used up: a full disk stops more than this daemon."""


class IpcSettings(Section, frozen=True, kw_only=True):
    """`[ipc]`: who may ask this daemon, and how much at once (mesh 3.1, 11)."""

    tcp_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Port on 127.0.0.1, 0 for any free one; without it there is the Unix socket only."""

    public_health_check: bool = False
    """Whether `/v1/health` is served over TCP without a token."""

    allowed_origins: list[str] = field(default_factory=list)
    """Values of `Origin` that are served. A page in a browser can reach this port too."""

    max_body_bytes: Annotated[int, Meta(ge=1024, le=16_777_216)] = 1_048_576
    """Largest request body; up to `max_in_flight` of them are in memory."""

    max_response_bytes: Annotated[int, Meta(ge=65_536, le=67_108_864)] = 10_485_760
    """A page of the inbox ends before it is larger than this."""

    max_header_bytes: Annotated[int, Meta(ge=1024, le=65_536)] = 16_384
    """Request line and headers: held before anything is known of the caller."""

    max_connections: Count = 256
    """Open connections; the process may have 1024 files."""

    max_in_flight: Count = 64
    """Requests whose head was read and that are not answered."""

    max_streams: Count = 32
    """Open `/v1/events` streams."""

    rate_per_second: Count = 100
    """Requests per second of one token, for as long as it likes."""

    rate_burst: Count = 1000
    """Requests of one token at once after a pause."""

    header_timeout_ms: Milliseconds = 10_000
    """From the first byte of a request to the end of its head."""

    body_timeout_ms: Milliseconds = 10_000
    """From a request's head to the end of its body: it holds one of `max_in_flight`."""

    keep_alive_timeout_ms: Milliseconds = 60_000
    """A connection without a request is closed after so long."""

    stream_buffer_bytes: Bytes = 1_048_576
    """Waiting to be read by one event stream; its reader gets the rest from the inbox later."""

    stream_timeout_ms: Milliseconds = 60_000
    """A reader of events that takes nothing for so long while something waits is cut off."""


class UplinkSettings(Section, frozen=True, kw_only=True):
    """`[uplink]`: the connection to the broker."""

    hello_version: Literal[1, 2] = 2
    """How this daemon proves its key. 2 signs the host and port it dialled. 1 is for brokers that
    know nothing else; who is dialled can pass it on to another broker (mesh 9.7)."""

    request_timeout_ms: Milliseconds = REQUEST_TIMEOUT_MS
    """An attempt without a reply for so long has failed, and its row is tried again."""


class FeatureSettings(Section, frozen=True, kw_only=True):
    """`[features]`: what the broker must offer."""

    require: list[str] = field(default_factory=lambda: list(REQUIRED))
    """Features without which the daemon refuses to work."""


class DaemonSettings(Section, frozen=True, kw_only=True):
    """Everything that can be set."""

    mesh: Slug
    """The mesh this daemon belongs to; one daemon per mesh."""

    broker: str
    """URL of the broker as its members write it, `https://host:port`; `wss://` means the same."""

    container: bool = False
    """Whether this is a container: there the Unix socket is all there is."""

    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    inbox: InboxSettings = field(default_factory=InboxSettings)
    disk: DiskSettings = field(default_factory=DiskSettings)
    ipc: IpcSettings = field(default_factory=IpcSettings)
    uplink: UplinkSettings = field(default_factory=UplinkSettings)
    features: FeatureSettings = field(default_factory=FeatureSettings)

    @property
    def signed_host(self) -> str | None:
        """What this member signs as dialled, in hellos and tokens; None if it is told not to."""
        return dialled(self.broker) if self.uplink.hello_version == 2 else None


def load(
    data_dir: Path, flags: Mapping[str, object], environ: Mapping[str, str]
) -> Loaded[DaemonSettings]:
    """Flags over `TIDELOG_DAEMON_*` variables over `daemon.toml` in `data_dir` over defaults."""
    return config.load_as(
        DaemonSettings, flags, environ, None, prefix=PREFIX, default_file=data_dir / FILE_NAME
    )
