"""What an operator can set for the engines."""

from typing import Annotated

from msgspec import Meta

from tidelog.base.settings.kinds import Milliseconds, Section


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
