"""The store that settings name, opened for serving."""

from collections.abc import Sequence

from tidelog.base.clock import ServerClock
from tidelog.base.ids import UlidFactory
from tidelog.config.schema import SCHEMA
from tidelog.config.settings import Settings
from tidelog.store import open_store
from tidelog.store.engine import Store
from tidelog.store.schema import Extension


async def open_served(
    settings: Settings,
    extensions: Sequence[Extension],
    clock: ServerClock,
    *,
    read_only: bool = False,
) -> Store:
    """With everything that surfaces add to it; `read_only` as of `open_store`."""
    ulids = UlidFactory(clock)
    return await open_store(
        SCHEMA.extended(extensions),
        settings.store_location,
        log_id=ulids.mint(),
        node=ulids.mint(),
        read_only=read_only,
        require_fsync=not settings.dev,
        connect_timeout_ms=settings.postgresql.connect_timeout_ms,
        statement_timeout_ms=settings.postgresql.statement_timeout_ms,
        pool_size=settings.postgresql.pool_size,
        page_cache_bytes=settings.sqlite.page_cache_bytes,
    )
