"""Two engines behind one narrow interface: SQLite and PostgreSQL."""

from pathlib import Path

from tidelog.base.errors import ConfigError
from tidelog.store.engine import NO_DRIVER, Store, Writer
from tidelog.store.schema import Extension, Schema
from tidelog.store.sqlite import PAGE_CACHE_BYTES, SqliteStore

__all__ = ["Extension", "Schema", "Store", "Writer", "open_store"]


async def open_store(
    schema: Schema,
    location: str,
    *,
    log_id: str,
    node: str,
    read_only: bool = False,
    require_fsync: bool = True,
    connect_timeout_ms: int = 5000,
    statement_timeout_ms: int = 30_000,
    pool_size: int = 4,
    page_cache_bytes: int = PAGE_CACHE_BYTES,
) -> Store:
    """Open the store at a path or a `postgresql://` URL.

    Args:
        schema: what the store consists of: `tidelog.config.schema.SCHEMA`, or that and more.
        location: the one setting that chooses the engine.
        log_id: what a new log will be called; an existing one keeps its own.
        node: unique name of this process among the writers of a PostgreSQL store.
        read_only: neither lock, migrate nor write.
        require_fsync: refuse a PostgreSQL that acknowledges what a power cut undoes.
        connect_timeout_ms: PostgreSQL only.
        statement_timeout_ms: PostgreSQL only.
        pool_size: PostgreSQL only: reading connections of this process.
        page_cache_bytes: SQLite only: of all connections of this process together.
    """
    if not location.startswith("postgresql://"):
        return SqliteStore(
            schema,
            Path(location),
            log_id=log_id,
            read_only=read_only,
            page_cache_bytes=page_cache_bytes,
        )
    try:
        from tidelog.store.postgresql import PostgresqlStore
    except ModuleNotFoundError as error:
        raise ConfigError(NO_DRIVER) from error
    return await PostgresqlStore.open(
        schema,
        location,
        log_id=log_id,
        node=node,
        read_only=read_only,
        require_fsync=require_fsync,
        connect_timeout_ms=connect_timeout_ms,
        statement_timeout_ms=statement_timeout_ms,
        pool_size=pool_size,
    )
