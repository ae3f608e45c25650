"""Questions in SQL: DuckDB over the tables of the lake, in this process, without a JVM.

DuckDB sees each table through Arrow, which opens the files of its newest version for reading. It
has no files and no network of its own, and its settings are locked before a query runs: what can be
asked is what is in the lake, and nothing can be changed. Everything stays in memory, up to a bound.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb
    import pyarrow as pa

MEMORY = "2GB"
"""Of a query, if nothing else is said; there is no disk to go on with."""

BATCH_ROWS = 2048
"""Rows that are fetched at once."""

INSTALL = "pip install 'tidelog[pipeline,sql]'"

_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # else a query could read variables of this process
    "temp_directory": "",
}
_LOCKS = (
    "LOAD icu",  # comes with DuckDB; without it, times cannot be computed with
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class QueryFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """What DuckDB says about a query, and what to do."""


class NoDuckDB(TidelogError):  # noqa: N818 - the failure is the noun
    """DuckDB is not installed."""


class Rows(NamedTuple):
    """The result of a query."""

    columns: tuple[str, ...]
    """Their names, each once."""
    batches: "Iterator[pa.RecordBatch]"
    """To be read once."""


def query(lake: Lake, text: str, *, memory: str = MEMORY) -> Rows:
    """Ask the tables of a lake.

    Args:
        lake: Its tables are views of the same names; those that were not built yet are not there.
        text: One statement that reads.
        memory: What it may take, such as `4GB`.

    Raises:
        ConfigError: it is not one statement that reads.
        QueryFailed: DuckDB refuses it; also while rows are read.
        NoDuckDB: the library is missing.
    """
    try:
        import duckdb
    except ImportError as error:
        raise NoDuckDB(f"asking in SQL needs duckdb. Install it: {INSTALL}") from error
    missing = _built(lake)[1]
    try:
        _require_reading(text)
        connection = _opened(lake, text, memory)
        reader = connection.sql(text).to_arrow_reader(BATCH_ROWS)
    except duckdb.Error as error:
        raise _failed(error, missing) from error
    return Rows(_unique(reader.schema.names), _read(reader, connection, missing))


def _built(lake: Lake) -> tuple[list[str], list[str]]:
    """The tables that are there, and those that are not."""
    there: tuple[list[str], list[str]] = ([], [])
    for table in TABLES:
        there[lake.delta(table.name) is None].append(table.name)
    return there


def _require_reading(text: str) -> None:
    import duckdb
    from duckdb import StatementType

    statements = duckdb.extract_statements(text)
    if len(statements) != 1 or statements[0].type not in (
        StatementType.SELECT,
        StatementType.EXPLAIN,
    ):
        raise ConfigError(
            "write one statement that reads, such as SELECT count(*) FROM message; the lake cannot "
            "be changed in SQL"
        )


def _opened(lake: Lake, text: str, memory: str) -> "duckdb.DuckDBPyConnection":
    import duckdb

    connection = duckdb.connect(":memory:", config={**_SETTINGS, "memory_limit": memory})
    for name in _built(lake)[0]:
        connection.register(name, lake.dataset(name, is_read=name in text.lower()))
    for statement in _LOCKS:
        connection.execute(statement)
    return connection


def _read(
    reader: "pa.RecordBatchReader",
    connection: "duckdb.DuckDBPyConnection",
    missing: list[str],
) -> "Iterator[pa.RecordBatch]":
    import duckdb
    import pyarrow as pa

    try:
        yield from reader
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _failed(error, missing) from error
    finally:
        connection.close()


def _failed(error: Exception, missing: list[str]) -> QueryFailed:
    said = str(error).strip()
    advice = ""
    if "Out of Memory" in said:
        said = said.partition("\n")[0]  # the rest is about settings that are locked
        advice = "\nSelect fewer rows or columns, or give it more: --memory 8GB."
    elif "does not exist" in said and any(f"name {name} " in said for name in missing):
        advice = "\nThat table was not built yet: `tidelog pipeline run`."
    elif "does not exist" in said:
        advice = "\n`SHOW TABLES` lists the tables, `DESCRIBE message` the columns of one."
    return QueryFailed(f"{said}{advice}")


def _unique(names: list[str]) -> tuple[str, ...]:
    """Names, the second of the same name with a number."""
    found: dict[str, None] = {}
    for name in names:
        number, free = 1, name
        while free in found:
            free, number = f"{name}_{number}", number + 1
        found[free] = None
    return tuple(found)


def plain(value: Any) -> Any:
    """A value of a row as JSON knows it: bytes in hexadecimal, times as text, digits kept."""
    from decimal import Decimal
    from math import isfinite

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        whole = value.to_integral_value()
        return int(whole) if whole == value else str(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else isoformat()
