"""What an operator can set, and why each limit is what it is.

A section of `tidelog.toml` is a Struct here; `tidelog.base.config` reads any Struct built from the
same parts (the kinds of `tidelog.base.setting_kinds`, sections, `list` of a Struct for an array of
tables), so a new setting is a new field and nothing else. Every limit protects the server from
a peer, or peers from each other: none may be switched off.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from tidelog.base import authority
from tidelog.base.channels_settings import App, Channels, FirstApp
from tidelog.base.errors import ConfigError
from tidelog.base.setting_kinds import (
    Bytes,
    Count,
    Milliseconds,
    Seconds,
    Secret,
    SecretUrl,
    Section,
)


class Limits(Section, frozen=True, kw_only=True):
    """`[limits]`: bounds on everything a peer can make the server hold or wait for."""

    max_body_bytes: Bytes = 10_485_760
    """Largest HTTP request body; it is held in memory until answered. 10 MiB is what the channels
    protocol states (channels 8.1)."""

    unauthenticated_body_bytes: Bytes = 65_536
    """Held of a request's body before it is known who sends it. What shows in the head is judged by
    the head; where only the body can show it, as in a login, it is the largest body."""

    unauthenticated_timeout_ms: Milliseconds = 5000
    """From the first byte of a request until it is known who sends it, as far as the sender takes
    the time. Waiting costs a stranger nothing, and us a buffer."""

    unauthenticated_total_bytes: Bytes = 67_108_864
    """Held of all such requests together, heads included. Beyond it the one that has waited longest
    is ended: it is the least likely to be finished by anybody who means it."""

    max_header_bytes: Annotated[int, Meta(ge=1024, le=1_048_576)] = 32_768
    """Request line and headers together. Headers are held before anything is known of the peer;
    32 KiB is room for a cursor of 16 KiB, a large cookie and a token."""

    max_headers: Annotated[int, Meta(ge=8, le=1000)] = 100
    """Number of headers. Many tiny headers cost more than their bytes: each is an object."""

    max_connections: Count = 10_000
    """Open connections of the process, HTTP and WebSocket. Beyond it new ones are refused rather
    than all of them starved; the open-file limit of the process must be higher."""

    idle_timeout_ms: Milliseconds = 120_000
    """A WebSocket peer silent for so long is pinged: a vanished peer sends no end of connection.
    An HTTP peer that reads nothing of its answer for so long is cut off."""

    pong_timeout_ms: Milliseconds = 30_000
    """A pinged peer silent for so long is closed; it holds a send buffer while it is believed
    alive. Long enough for a phone that changes networks."""

    close_timeout_ms: Milliseconds = 5000
    """A WebSocket peer that does not answer our close frame for so long is cut off."""

    header_timeout_ms: Milliseconds = 10_000
    """From a connection to its first byte, and from the first byte of a WebSocket handshake to its
    end: a peer that dribbles bytes must not hold a connection for nothing. Other requests have
    `unauthenticated_timeout_ms`, if that is shorter."""

    keep_alive_timeout_ms: Milliseconds = 5000
    """An HTTP connection without a request is closed after so long. Short: reopening is cheap, a
    held connection counts against `max_connections`."""

    send_buffer_bytes: Bytes = 16_777_216
    """Waiting to be sent to one peer. Beyond it the peer reads too slowly, is closed and resumes by
    serial: without a bound one stopped reader would take the memory of all."""

    send_buffer_messages: Count = 1000
    """Messages waiting to be sent to one peer; many small ones cost more than their bytes. Above
    `handover_entries`, so that one step of a batch cannot close a healthy peer."""

    commit_queue_requests: Count = 8192
    """Requests waiting for the committer. Beyond it callers are told to come back: an answer now is
    better than a wait longer than their timeout. About half a second of work."""

    commit_queue_bytes: Bytes = 67_108_864
    """Bytes of the requests waiting for the committer: large requests fill memory before they fill
    the count."""

    commit_batch_requests: Count = 512
    """Requests in one transaction. More gains little throughput and makes every waiting caller
    wait for the whole batch."""

    commit_batch_bytes: Bytes = 4_194_304
    """Bytes in one transaction; bounds how long one COMMIT can take."""

    handover_entries: Count = 256
    """Committed entries given to the connections in one step, before sockets get their turn: one
    batch must not overrun the send buffers of healthy peers."""

    shutdown_grace_ms: Milliseconds = 10_000
    """From the signal to stop until connections are cut. Accepted writes are finished within it;
    below the 30 s after which process managers kill."""

    head_poll_ms: Milliseconds = 1000
    """How often the head of the log is read in case a notification of another node was lost: the
    longest delay such a loss can cause."""


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(setting: str, given: list[str] | str) -> tuple[Network, ...]:
    """The networks that a setting lists; a bare address is one of a single address.

    Raises:
        ConfigError: some of them are none; a line for each.
    """
    found: list[Network] = []
    problems: list[str] = []
    for listed in _listed(given):
        try:
            found.append(ipaddress.ip_network(listed, strict=False))
        except ValueError:
            problems.append(
                f"{setting}: {listed[:100]!r} is neither an address nor a network. Write 10.0.0.5, "
                "10.0.0.0/8 or 2001:db8::/32"
            )
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(found)


def _listed(given: list[str] | str) -> tuple[str, ...]:
    """A list that may also be text with commas, as a variable has it."""
    listed = given.split(",") if isinstance(given, str) else given
    return tuple(each.strip() for each in listed if each.strip())


class PerAddress(Section, frozen=True, kw_only=True):
    """`[per_address]`: what one address may have of a server; IPv6 counts by its first 64 bits."""

    max_connections: Count = 200
    """Open connections, HTTP and WebSocket; one more is answered 429. Many people may share an
    address, and no single one needs all of `limits.max_connections`."""

    max_subscriptions: Count = 10_000
    """Subscriptions to channels, over all its sockets; more are refused with 4300. Anybody may
    subscribe to public channels."""

    max_failed_authentications_per_minute: Count = 20
    """Signatures, tokens and hellos that prove nothing, at once and then evenly over a minute.
    Beyond it none of the address is judged: each costs us more than it costs to send."""

    max_joins_per_minute: Count = 10
    """Tries to join a mesh, likewise: whoever has no invite could guess at one, and each is a
    signature to verify and a look into the store."""

    exempt: list[str] | str = "127.0.0.0/8,::1"
    """Addresses and networks that have none of these limits: a list, or text with commas. This
    machine by default."""

    trusted_proxies: list[str] | str = ""
    """Addresses and networks of the proxies in front of this server. They are exempt too, and what
    they add to `X-Forwarded-For` is the address that counts. Whoever is in it can give itself any
    address."""

    def __post_init__(self) -> None:
        """Refuse what is no network before anything is opened."""
        problems: list[str] = []
        for name in ("exempt", "trusted_proxies"):
            try:
                networks(f"per_address.{name}", getattr(self, name))
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            raise ConfigError("\n".join(problems))


class Sqlite(Section, frozen=True, kw_only=True):
    """`[sqlite]`: used when `store` is a file."""

    page_cache_bytes: Annotated[int, Meta(ge=1_048_576, le=1 << 40)] = 201_326_592
    """Pages of the file in memory, of all connections together: a third for the writer, whose
    random keys touch pages everywhere, the rest for readers. It fills as the file is read and is
    not given back: memory grows with a young file until it is reached. A small machine can do with
    less; then more is read from the system's own cache."""


class Postgresql(Section, frozen=True, kw_only=True):
    """`[postgresql]`: used when `store` is a `postgresql://` URL."""

    pool_size: Annotated[int, Meta(ge=1, le=100)] = 4
    """Connections for reading, besides the writer's and the listener's. Half of them, at least one,
    are for short reads, which health, subscribing and publishing wait for; the others, at least
    one, for whatever else is read, such as histories. A server allows 100 by default for all its
    clients together."""

    connect_timeout_ms: Milliseconds = 5000
    """A server that does not answer the handshake for so long is unavailable."""

    statement_timeout_ms: Milliseconds = 30_000
    """A statement that takes longer is cancelled by the server: it may hold the head lock, and all
    nodes wait for that."""


class Sync(Section, frozen=True, kw_only=True):
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
    """A client that sends no heartbeat for so long is closed; other traffic does not count."""

    max_batch_size: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Events in one submit."""

    sync_limit_min: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Smallest page of a sync; a smaller wish is raised to it, or catching up takes for ever."""

    sync_limit_max: Annotated[int, Meta(ge=1, le=1000)] = 1000
    """Largest page of a sync: it is held in memory while it is sent."""

    max_message_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 1_048_576
    """Largest message that is processed; up to four times as much is answered, more is cut off."""

    max_in_flight_drafts: Count = 200
    """Events of one connection received and not yet answered. Below `max_batch_size` it is also the
    most in one submit."""

    max_messages_per_second: Count = 200
    """Messages of one connection per second; more are dropped and answered `rate_limited`."""

    max_cached_bytes: Bytes = 268_435_456
    """About the memory for states of partitions kept for validation; what is beyond is derived from
    the log again when it is needed. 256 MiB hold about two million tree nodes and values."""

    @property
    def is_served(self) -> bool:
        """Whether there is a way to verify tokens."""
        return bool(self.jwt_secret or self.jwt_key_file)

    @property
    def batch_size(self) -> int:
        """Events in one submit: more than may be in flight could never be accepted."""
        return min(self.max_batch_size, self.max_in_flight_drafts)


DEVELOPMENT_ADMIN_TOKEN = "dev-admin-token"  # noqa: S105 - everybody may know it, as below
"""Under `dev` without an `admin_token`: what meshes are administered with."""

DEVELOPMENT_APP = App(
    id="app-id",
    key="app-key",
    secret="app-secret",  # noqa: S106 - everybody may know it: it is served under `dev` only
    enable_client_messages=True,
    enable_user_authentication=True,
)
"""What `dev` serves besides the configured applications, so that a client library can be tried
without any configuration."""


class Mesh(Section, frozen=True, kw_only=True):
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
    """Sends of a new mesh in one window, all members together; more are answered 429 (mesh 6.3)."""

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
    """How long an endpoint may take to answer (mesh 7.4)."""

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
        """Refuse what is no address before anything is opened."""
        for listed in self.listed_hosts:
            try:
                authority.read(listed)
            except ValueError:
                raise ConfigError(
                    f"mesh.public_hosts: {listed[:100]!r} is no address that daemons dial. Write "
                    "broker.example, broker.example:8443 or [2001:db8::1]:8080, without https://"
                ) from None

    @property
    def listed_hosts(self) -> tuple[str, ...]:
        """`public_hosts`, one by one."""
        return _listed(self.public_hosts)


class Pipeline(Section, frozen=True, kw_only=True):
    """`[pipeline]`: where what Spark makes of the log is."""

    lake: str = ""
    """Directory of the lake; empty for `lake` in `data_dir`. If it is there when the server starts,
    the server serves `GET /search` from it; it changes no content, only puts locks beside it."""


class Tracing(Section, frozen=True, kw_only=True):
    """`[tracing]`: OpenTelemetry traces; off unless an endpoint is set."""

    endpoint: SecretUrl = ""
    """Base URL of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`. Needs
    `pip install 'tidelog[otel]'`."""

    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the traces that begin here and are sent; a caller's own trace decides itself."""

    def __post_init__(self) -> None:
        """Refuse what is no URL before anything is opened."""
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("tracing.endpoint: give an http:// or https:// URL of a collector")


class Settings(Section, frozen=True, kw_only=True):
    """`tidelog.toml`; see `tidelog.base.config.load` for where else a value can come from."""

    data_dir: Annotated[str, Meta(min_length=1)] = "tidelog-data"
    """Directory of everything the server writes; relative to the working directory."""

    store: SecretUrl = ""
    """Where the log lives: empty for `tidelog.db` in `data_dir`, a path of an SQLite file, or a
    `postgresql://` URL. The URL may hold a password, which is masked wherever it is shown."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on. Only this machine by default: nobody should publish a server by
    starting it."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """TCP port for HTTP and WebSocket; 0 takes a free one and prints it."""

    tls_certificate: str = ""
    """PEM file with the certificate chain; empty for plain HTTP. Needs `tls_key`."""

    tls_key: str = ""
    """PEM file with the private key of `tls_certificate`."""

    admin_token: Secret = ""
    """Bearer token for administration. `tidelog serve` does not start without it, unless `dev`;
    see `tidelog.base.credentials`."""

    dev: bool = False
    """Development: a PostgreSQL with `fsync` or `synchronous_commit` off is accepted, and the
    application `app-id` with key `app-key` and secret `app-secret` is served."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""

    log_format: Literal["text", "json"] = "text"
    """`text` for people, `json` with one object per line for collectors."""

    limits: Limits = Limits()
    """Section `[limits]`."""

    per_address: PerAddress = PerAddress()
    """Section `[per_address]`."""

    sqlite: Sqlite = Sqlite()
    """Section `[sqlite]`."""

    postgresql: Postgresql = Postgresql()
    """Section `[postgresql]`."""

    sync: Sync = Sync()
    """Section `[sync]`."""

    channels: Channels = Channels()
    """Section `[channels]`."""

    mesh: Mesh = Mesh()
    """Section `[mesh]`."""

    pipeline: Pipeline = Pipeline()
    """Section `[pipeline]`."""

    tracing: Tracing = Tracing()
    """Section `[tracing]`."""

    app: FirstApp = FirstApp()
    """Section `[app]`: an application from `TIDELOG_APP_SECRET`; it is served beside `apps`."""

    apps: list[App] = field(default_factory=list)
    """Tables `[[apps]]`: the applications of the channels surface. Ids and keys are unique."""

    def __post_init__(self) -> None:
        """Refuse values that are right alone and wrong together."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together: set both or neither")
        if "://" in self.store and not self.is_postgresql:
            scheme = self.store.partition("://")[0]
            raise ConfigError(
                f"store: no engine for {scheme[:40]}://; allowed is a path or a postgresql:// URL"
            )
        for name in ("id", "key"):
            taken = {getattr(self.app, name)} if self.app.secret else set()
            for index, app in enumerate(self.apps):
                value = getattr(app, name)
                if value in taken:
                    raise ConfigError(f"apps[{index}].{name}: another app has {value} already")
                taken.add(value)

    @property
    def configured_apps(self) -> tuple[App, ...]:
        """The applications of `[app]` and `[[apps]]`."""
        first = self.app
        if not first.secret:
            return tuple(self.apps)
        return (App(id=first.id, key=first.key, secret=first.secret), *self.apps)

    @property
    def served_apps(self) -> tuple[App, ...]:
        """The configured applications; under `dev` also the one everybody knows.

        An application configured with its id or key takes its place.
        """
        apps, known = self.configured_apps, DEVELOPMENT_APP
        if not self.dev or any(app.id == known.id or app.key == known.key for app in apps):
            return apps
        return (*apps, known)

    @property
    def administration_token(self) -> str:
        """What opens administration; empty if nothing does, and then no mesh is served."""
        return self.admin_token or (DEVELOPMENT_ADMIN_TOKEN if self.dev else "")

    @property
    def lake_path(self) -> Path:
        """Directory of the lake, whether it is there or not."""
        return Path(self.pipeline.lake) if self.pipeline.lake else Path(self.data_dir) / "lake"

    @property
    def is_postgresql(self) -> bool:
        """Whether `store` names a PostgreSQL database rather than a file."""
        return self.store.startswith("postgresql://")

    @property
    def sqlite_path(self) -> Path:
        """The SQLite file, when `store` names one."""
        return Path(self.store) if self.store else Path(self.data_dir) / "tidelog.db"

    @property
    def store_location(self) -> str:
        """What `tidelog.store.open_store` opens: a path or a `postgresql://` URL."""
        return self.store or str(self.sqlite_path)
