"""`tidelog pipeline sql`: ask the tables of the lake in SQL."""

import csv
import itertools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.base.errors import ConfigError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import LakeOption, waiting, workspace_at
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption

if TYPE_CHECKING:
    from tidelog.pipeline.sql_query import Rows

SHOWN_ROWS = 100
MAX_ROWS = 100_000
"""That are shown or written as JSON at most: this process has all of them. CSV has no bound."""

_SHOWN_CHARACTERS = 200


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT; - reads it from standard input.")],
    *,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help=f"Most rows to print; default {SHOWN_ROWS}, with --csv all.",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a line of names.")] = False,
    memory: Annotated[
        str, typer.Option("--memory", help="What the query may take, such as 8GB.")
    ] = "2GB",
    data_dir: DataDirOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the tables of the lake in SQL, with DuckDB; starts no JVM and changes nothing.

    Every table is a view of its name: `SHOW TABLES` lists them, `DESCRIBE message` shows columns.
    A query sees the tables as they are when it begins, and no file but theirs.

    Example: tidelog pipeline sql "SELECT channel, count(*) FROM message GROUP BY 1 ORDER BY 2 DESC"
    """
    if as_csv and as_json:
        raise ConfigError("--csv and --json: choose one")
    if limit is not None and limit > MAX_ROWS and not as_csv:
        raise ConfigError(f"--limit: at most {MAX_ROWS:,} rows are shown; --csv writes all of them")
    text = sys.stdin.read() if query == "-" else query
    most = limit or SHOWN_ROWS
    found: list[tuple[Any, ...]] = []
    with workspace_at(config, data_dir, None, lake) as workspace:
        from tidelog.pipeline.sql_query import query as ask

        with waiting("asking", is_silent=as_json or as_csv):
            rows = ask(workspace.lake, text, memory=memory)
            if not as_csv:
                found += itertools.islice(_values(rows), most + 1)
        if as_csv:
            _write_csv(rows, limit)
    if as_json:
        named = [dict(zip(rows.columns, row, strict=True)) for row in found[:most]]
        has_more = len(found) > most
        typer.echo(json.dumps({"columns": rows.columns, "rows": named, "has_more": has_more}))
    elif not as_csv:
        _show(rows.columns, found[:most], has_more=len(found) > most)


def _values(rows: "Rows") -> Iterator[tuple[Any, ...]]:
    """The rows, each as its values."""
    from tidelog.pipeline.sql_query import plain

    for batch in rows.batches:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield tuple(plain(value) for value in row)


def _write_csv(rows: "Rows", limit: int | None) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.columns)
    writer.writerows(
        [json.dumps(value) if isinstance(value, dict | list) else value for value in row]
        for row in itertools.islice(_values(rows), limit)
    )


def _show(columns: tuple[str, ...], rows: list[tuple[Any, ...]], *, has_more: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table()
    for name in columns:
        shown.add_column(Text(printable(name)))
    for row in rows:
        shown.add_row(*(Text(_cell(value)) for value in row))
    Console().print(shown)
    more = "; there are more: --limit, or --csv for all" if has_more else ""
    typer.echo(f"{len(rows):,} rows{more}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = printable(json.dumps(value) if isinstance(value, dict | list | bool) else str(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
