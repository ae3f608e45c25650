"""What an operator can set of channels: the applications, and `[channels]` with its sections.

`tidelog.config.settings` holds them with everything else and says how a setting is made.
"""

from typing import Annotated, Protocol

from msgspec import Meta, field

from tidelog.base.settings.kinds import Bytes, Count, Name, Seconds, Secret, Section


def set_by(name: str) -> str:
    """The end of an error that a setting causes, so that its reader knows what to change."""
    return f" (setting {name})"


class App(Section, frozen=True, kw_only=True):
    """`[[apps]]`: one application of the channels surface, apart from every other one."""

    id: Name
    """Names the application in paths, `/apps/{id}/...`."""

    alias: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")] = ""
    """Another id that works in paths; empty for none. For Pusher libraries that take a number only,
    where `id` is none and stays what the stored channels are called by."""

    key: Name
    """Names the application to everybody: in `/app/{key}`, auth strings and request signatures."""

    secret: Annotated[Secret, Meta(min_length=1)]
    """Signs requests, subscriptions, sign-ins and tokens: whoever knows it can do everything."""

    enabled: bool = True
    """Whether it is served; the sockets of one that is not are closed with 4003."""

    enable_client_messages: bool = False
    """Whether clients may send `client-` events. Off: a client would speak without the server of
    the application in between."""

    enable_user_authentication: bool = False
    """Whether clients may sign in as a user. Off until the application has an endpoint for it."""

    max_connections: Count = 10_000
    """Sockets of this application in a process; one more is closed with 4004. Applications share
    one, so that none may take all of `limits.max_connections`."""

    max_client_events_per_second: Count = 10
    """Client events and events of runs of one socket per second; more are refused with 4301. Each
    is delivered to every other subscriber, so one client could make the server write without end.
    Enough for typing indicators and cursors."""

    max_api_requests_per_minute: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Signed HTTP requests per minute, then 429; 0 for no limit, because these come from the
    application's own servers."""


class FirstApp(Section, frozen=True, kw_only=True):
    """`[app]`: one application that variables can set, which no array of tables can.

    For a container or a service that is configured by its environment alone. Everything else of it
    has the defaults of `App`; for more than that, write `[[apps]]`.
    """

    id: Name = "main"
    """As in `App`."""

    key: Name = "main-key"
    """As in `App`."""

    secret: Secret = ""
    """As in `App`; empty: there is no such application."""


class VersionedMessages(Section, frozen=True, kw_only=True):
    """`[channels.versioned_messages]`: messages that can be updated, appended to and deleted."""

    enabled: bool = True
    """Whether every publish on a channel with history can be mutated later. Each version is kept:
    see `retention_window_seconds`."""

    max_page_size: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Versions in one page; a larger limit is lowered to it, because a page is held in memory."""

    retention_window_seconds: Annotated[int, Meta(ge=0, le=2**40)] = 0
    """Versions older than this are deleted; 0 keeps them for ever."""

    purge_batch_size: Count = 1000
    """Versions deleted in one transaction: writers wait while it runs."""

    purge_interval_seconds: Seconds = 300
    """How often versions that are too old are looked for."""

    purge_tick_versions: Count = 100_000
    """Versions deleted in one go; if more are due, it goes on after a second's rest."""


class AiTransport(Section, frozen=True, kw_only=True):
    """`[channels.ai_transport]`: bounds of messages that are streamed by appending."""

    max_accumulated_message_bytes: Bytes = 1_048_576
    """Largest data of one message after an append or update. A client of mode `full` is sent all
    of it for each append."""

    max_appends_per_message: Count = 4096
    """Appends to one message; its readers may ask for each of them."""

    max_open_streaming_messages_per_channel: Count = 1024
    """Messages of one channel whose status is `streaming`: they stay in memory until they end."""

    orphan_timeout_seconds: Seconds = 60
    """A message whose status is `streaming` and that got no new version for this long has lost its
    writer: the server ends it with the status `cancelled` and the error code `orphan_timeout`. It
    would count against the limit above for ever. Longer for writers that pause longer."""

    channels: list[str] = field(default_factory=list)
    """Beginnings of the names of the channels that these limits, and the rules of runs, hold for;
    empty for all channels."""


class History(Section, frozen=True, kw_only=True):
    """`[channels.history]`: which channels can be read backwards."""

    enabled: bool = True
    """Whether any channel keeps a history; without one there is no rewind and no mutation."""

    channels: list[str] = field(default_factory=lambda: ["*"])
    """Patterns of the channels that keep one, with at most one `*` each, such as `private-ai:*`."""

    max_page_size: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Messages in one page or rewind; a larger limit is lowered to it, because a page is held in
    memory."""

    retention_seconds: Annotated[int, Meta(ge=0, le=2**40)] = 86_400
    """Messages older than this are hidden from history and rewind; 0 shows all. One day is what
    the protocol states (channels 8.1)."""


class ConnectionRecovery(Section, frozen=True, kw_only=True):
    """`[channels.connection_recovery]`: what a socket that comes back is sent again."""

    enabled: bool = True
    """Whether sockets may resume."""

    max_buffer_size: Annotated[int, Meta(ge=1, le=100_000)] = 4096
    """Operations of one channel that are sent again at most; a client that missed more reads the
    history. A stream of tokens is some hundred of them. They are sent no faster than the socket
    takes them, and read from the store a page at a time."""

    buffer_ttl_seconds: Seconds = 120
    """How long operations stay in memory for this; older ones are read from the store."""

    buffer_bytes: Bytes = 33_554_432
    """Of the operations of all channels that stay in memory; what is beyond is read from the store,
    which is only slower."""


class Channels(Section, frozen=True, kw_only=True):
    """`[channels]`: the channels surface; it is served when there is an application."""

    activity_timeout_seconds: Seconds = 120
    """A socket that is silent for this long is pinged; clients are told and ping by themselves."""

    pong_timeout_seconds: Seconds = 30
    """A pinged socket that stays silent for this long is closed with 4201. Long enough for a phone
    that changes networks."""

    max_message_bytes: Annotated[int, Meta(ge=1024, le=67_108_864)] = 65_536
    """Largest message of a client; a larger one closes its socket with 1009 (channels 8.1)."""

    max_message_values: Count = 100_000
    """JSON values in one message of a client or body of a request, in all arrays and objects; more
    are refused (channels 8.1). Ten megabytes can hold five million, and everybody waits while they
    are read."""

    max_event_payload_bytes: Bytes = 102_400
    """Largest data of one event. It is copied to every subscriber."""

    max_event_name_bytes: Count = 200
    """Largest name of an event; it is stored and sent with each."""

    max_channel_name_bytes: Annotated[int, Meta(ge=1, le=512)] = 200
    """Largest name of a channel: names are keys in memory and in the store."""

    max_channels_per_event: Count = 100
    """Channels of one publish; all of them commit together."""

    max_batch_events: Count = 10
    """Events in one batch request."""

    max_presence_members: Count = 100
    """Users of one presence channel: each joiner is sent all of them, and all are told of each."""

    max_presence_user_info_bytes: Bytes = 2048
    """Largest `user_info` of a member, kept in memory and sent to every joiner."""

    max_user_data_bytes: Bytes = 16_384
    """Largest `user_data` of a sign-in. Its capabilities stay in memory with the socket."""

    max_subscriptions_per_connection: Count = 1000
    """Channels of one socket, and channels it may resume at once; more are refused with 4300.
    Each costs an entry in the socket and in the channel."""

    max_channels_per_app: Count = 100_000
    """Channels of one app that have subscribers, on one node; a subscribe to one more is refused
    with 4300. Each costs memory, and whoever subscribes chooses its name."""

    idempotency_ttl_seconds: Seconds = 120
    """How long the response under an idempotency key is kept; retries come within seconds."""

    cache_ttl_seconds: Seconds = 3600
    """How long the last event of a cache channel is given to new subscribers."""

    rewind_enabled: bool = True
    """Whether a subscribe may ask for what was sent before it."""

    token_grace_seconds: Seconds = 30
    """From the end of a token until its socket is closed: time to fetch a new one."""

    flush_ms: Annotated[int, Meta(ge=0, le=10)] = 0
    """How long frames for 16 connections or more may wait for others to leave with them, in one
    write for each connection; 0 for not at all. It saves CPU where many publishes a second go to
    the same subscribers, and delays each by that much. Frames of sync and mesh that are due at the
    same moment wait with them."""

    max_cached_text_bytes: Bytes = 67_108_864
    """Data of messages kept in memory to append to, and as much to send with later versions; what
    is beyond is read from the log again."""

    proxy_enabled: bool = False
    """Whether the helper that client libraries read history and mutate messages through is served,
    which needs no signature; only for tests and behind an authenticating proxy. Needs
    `proxy_token`."""

    proxy_token: Secret = ""
    """Bearer token of that helper; whoever has it may do what an app's server may do, on every
    app. Empty: the helper is not served."""

    versioned_messages: VersionedMessages = VersionedMessages()
    """Section `[channels.versioned_messages]`."""

    ai_transport: AiTransport = AiTransport()
    """Section `[channels.ai_transport]`."""

    history: History = History()
    """Section `[channels.history]`."""

    connection_recovery: ConnectionRecovery = ConnectionRecovery()
    """Section `[channels.connection_recovery]`."""


class ServerSettings(Protocol):
    """What channels needs of all the settings of a server."""

    @property
    def channels(self) -> Channels:
        """Section `[channels]`."""

    @property
    def administration_token(self) -> str:
        """What opens administration; empty if nothing does."""

    @property
    def served_apps(self) -> tuple[App, ...]:
        """The applications that are served."""
