"""The numbers that bound what one server holds for its peers."""

from typing import Protocol

from msgspec import Struct


class Limits(Protocol):
    """What the web room reads from the `[limits]` settings; any object with these fields does."""

    @property
    def max_connections(self) -> int:
        """WebSocket connections at one time; beyond it an upgrade is answered 503.

        Each costs a file descriptor and memory: without a bound, whoever opens connections decides
        how much.
        """

    @property
    def idle_timeout_ms(self) -> int:
        """Silence after which a peer is pinged."""

    @property
    def pong_timeout_ms(self) -> int:
        """Silence after that ping at which the connection is dropped.

        A peer that vanished without a FIN would otherwise hold its connection forever.
        """

    @property
    def close_timeout_ms(self) -> int:
        """How long a peer may take to answer our close frame before its connection is dropped."""

    @property
    def send_buffer_bytes(self) -> int:
        """Bytes that a peer's socket may leave untaken; beyond it the peer is a slow consumer.

        Every broadcast would otherwise grow the memory held for a peer that does not read.
        """

    @property
    def send_buffer_messages(self) -> int:
        """Messages that a peer's socket may leave untaken; each costs more than its bytes."""


class WebLimits(Struct, frozen=True, kw_only=True):
    """`Limits` as plain numbers, with the defaults."""

    max_connections: int = 10_000
    idle_timeout_ms: int = 30_000
    pong_timeout_ms: int = 10_000
    close_timeout_ms: int = 5_000
    send_buffer_bytes: int = 1 << 20
    send_buffer_messages: int = 4_096
