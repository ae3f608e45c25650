"""DuckDB and Polars doing the same work: SQLite to Parquet with zstd, and the same fold.

Both get the rows from SQLite as Arrow batches by ADBC, which is how the Spark source reads too, in
one long query each; neither checks digests' continuity nor commits positions. The fold reads the
very files that Spark made.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from adbc_driver_sqlite import dbapi

COLUMNS = (
    *("committed_id", "stream", "stream_serial", "surface", "kind", "entity", "ref", "actor"),
    *("committed_at", "body", "body_digest", "digest"),
)
_KEY = ("app_id", "channel", "message_serial")
_NEWEST = (
    *("action", "name", "data_bytes", "extras", "tags", "creator", "client_id", "description"),
    *("metadata", "delivery_serial"),
)
_FOLD = (Path(__file__).with_name("fold.sql")).read_text(encoding="utf-8")


def duckdb_ingest(store: Path, target: Path) -> int:
    """All entries of a store as a Parquet file; returns how many."""
    with dbapi.connect(f"{store.as_uri()}?mode=ro") as connection, connection.cursor() as cursor:
        rows = _rows(cursor)  # noqa: F841 - named in the statement
        with duckdb.connect() as engine:
            engine.execute(
                f"COPY (SELECT * FROM rows) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
            )
            return _count(target)


def polars_ingest(store: Path, target: Path) -> int:
    """The same."""
    with dbapi.connect(f"{store.as_uri()}?mode=ro") as connection, connection.cursor() as cursor:
        frame = pl.from_arrow(_rows(cursor))
        assert isinstance(frame, pl.DataFrame)
        frame.write_parquet(target, compression="zstd")
        return frame.height


def _rows(cursor: Any) -> pa.RecordBatchReader:
    cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
    cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM log ORDER BY committed_id")
    reader: pa.RecordBatchReader = cursor.fetch_record_batch()
    return reader


def _count(file: Path) -> int:
    import pyarrow.parquet as pq

    rows: int = pq.read_metadata(file).num_rows
    return rows


def duckdb_fold(versions: Sequence[str], target: Path) -> int:
    """Versions to messages as a Parquet file; returns how many messages."""
    with duckdb.connect() as engine:
        engine.execute("SET VARIABLE files = ?", [list(versions)])
        engine.execute(_FOLD.replace("{target}", str(target)))
    return _count(target)


def polars_fold(versions: Sequence[str], target: Path) -> int:
    """The same."""
    whole = (pl.col("action") != "append").cast(pl.Int64)
    steps = (
        pl.scan_parquet(list(versions))
        .sort("committed_id")
        .with_columns(_through=whole.cum_sum().over(_KEY))
        .with_columns(_counts=pl.col("_through") == pl.col("_through").max().over(_KEY))
    )
    parts = pl.col("data").filter(pl.col("_counts") & pl.col("data").is_not_null())
    inner = parts.str.slice(1, parts.str.len_chars() - 2)
    messages = (
        steps.group_by(_KEY)
        .agg(
            pl.col("history_serial").max(),
            *(pl.col(name).last() for name in _NEWEST),
            parts.len().alias("_parts"),
            parts.first().alias("_first"),
            inner.str.join("").alias("_joined"),
            pl.len().alias("versions"),
            (pl.col("action") == "append").sum().alias("appends"),
            pl.col("committed_id").min().alias("first_committed_id"),
            pl.col("committed_id").max().alias("last_committed_id"),
            pl.col("committed_at").min().alias("published_at"),
            pl.col("committed_at").max().alias("updated_at"),
            (~pl.col("_counts") | pl.col("is_available")).all().alias("is_complete"),
        )
        .with_columns(
            state=pl.when(pl.col("action") == "delete")
            .then(pl.lit("deleted"))
            .otherwise(pl.lit("visible")),
            data=pl.when(~pl.col("is_complete") | (pl.col("_parts") == 0))
            .then(None)
            .when(pl.col("_parts") == 1)
            .then(pl.col("_first"))
            .otherwise(pl.concat_str(pl.lit('"'), pl.col("_joined"), pl.lit('"'))),
        )
        .drop("_parts", "_first", "_joined")
        .collect()
    )
    messages.write_parquet(target, compression="zstd")
    return messages.height


def summary(files: Sequence[str]) -> tuple[int, int, int]:
    """Messages, deleted ones, and a sum over all their data: equal for equal folds."""
    with duckdb.connect() as engine:
        engine.execute("SET VARIABLE files = ?", [list(files)])
        found = engine.execute(
            "SELECT count(*), count(*) FILTER (WHERE state = 'deleted'), "
            "sum(hash(message_serial || coalesce(data, '')) % 1000000007)::BIGINT "
            "FROM read_parquet(getvariable('files'))"
        ).fetchone()
    assert found is not None
    return found[0], found[1], found[2]
