"""Bounds on what a peer can make a server hold, and why each of them is what it is.

Every limit protects the server from a peer, or peers from each other: none may be switched off.
"""

import ipaddress
from typing import Annotated

from msgspec import Meta

from tidelog.base.errors import ConfigError
from tidelog.base.settings.kinds import Bytes, Count, Milliseconds, Section, one_by_one


class Limits(Section, frozen=True, kw_only=True):
    """`[limits]`: bounds on everything a peer can make the server hold or wait for."""

    max_body_bytes: Bytes = 10_485_760
    """Largest HTTP request body; held in memory until the response. 10 MiB is what the channels
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
    """Open connections of a process, HTTP and WebSocket; with `workers` of each. Beyond it new ones
    are refused rather than all of them starved; the process's open-file limit must be higher."""

    idle_timeout_ms: Milliseconds = 120_000
    """A WebSocket peer silent for so long is pinged: a vanished peer sends no end of connection.
    An HTTP peer that reads nothing of its response for so long is cut off."""

    pong_timeout_ms: Milliseconds = 30_000
    """A pinged peer silent for so long is closed; it holds a send buffer while it is believed
    alive. Long enough for a phone that changes networks."""

    close_timeout_ms: Milliseconds = 5000
    """A WebSocket peer that does not answer our close frame for so long is cut off."""

    header_timeout_ms: Milliseconds = 10_000
    """From a connection to the end of its TLS handshake, then to its first byte, and from the first
    byte of a WebSocket handshake to its end: a peer that dribbles bytes must not hold a connection
    for nothing. Other requests have `unauthenticated_timeout_ms`, if that is shorter."""

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
    """Requests waiting for the committer. Beyond it callers are told to retry: a refusal now is
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
    for listed in one_by_one(given):
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


class PerAddress(Section, frozen=True, kw_only=True):
    """`[per_address]`: what one address may have of a server; IPv6 counts by its first 64 bits.

    With `workers` each of them has its share.
    """

    max_connections: Count = 200
    """Open connections, HTTP and WebSocket, TLS handshakes among them; one more gets 429, or is
    closed in its handshake if many of them come at once. Many people may share an address, and no
    single one needs all of `limits.max_connections`."""

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
