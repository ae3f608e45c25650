"""`tidelog pipeline search`, `as-of` and `report`: what the lake shows."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import (
    ConfOption,
    LakeOption,
    MasterOption,
    Workspace,
    conf_pairs,
    print_json,
    spark_for,
    workspace_at,
)
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption

if TYPE_CHECKING:
    from tidelog.pipeline.search.index import Hit

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The page; default report.html in the lake."),
]

PAGE_NAME = "report.html"

MAX_ROWS = 100_000
"""Rows that `as-of` prints at most: they are collected in this process."""

SHOWN = {
    "channel": ("history_serial", "message_serial", "state", "name", "data"),
    "partition": ("partition", "committed_id", "events", "state"),
    "mesh": ("history_id", "destination_kind", "destination_ref", "sender_name", "content"),
}
"""Columns that are shown as text; JSON has all."""

_SHOWN_CHARACTERS = 200


def search(
    query: Annotated[str, typer.Argument(help='Words, "phrases", AND, OR, -not, name:EVENT_NAME.')],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Most hits to print.")
    ] = 10,
    app_id: Annotated[str | None, typer.Option("--app", help="Only this app.")] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="Only this channel.")] = None,
    data_dir: DataDirOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find visible messages; starts no JVM.

    Example: tidelog pipeline search 'tide AND -low' --channel harbour
    """
    with workspace_at(config, data_dir, None, lake) as workspace:
        import msgspec

        from tidelog.pipeline.search.index import search as find

        found = find(workspace.lake.root, query, limit, app_id=app_id, channel=channel)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for hit in found.hits:
        console.print(*_hit(hit), sep="  ", soft_wrap=True)
    typer.echo(f"{len(found.hits)} of {found.total:,} messages; the index is at {found.through:,}")


def _hit(hit: "Hit") -> tuple[Any, Any]:
    from rich.text import Text

    name = Text(printable(f"{hit.app_id}/{hit.channel}/{hit.message_serial}"), style="dim")
    snippet = Text(printable(hit.snippet))
    for begin, end in hit.highlights:
        snippet.stylize("bold", begin, end)
    return name, snippet


def as_of(
    at: Annotated[str, typer.Argument(help="A committed_id, or a time such as 2026-05-01T12:00Z.")],
    kind: Annotated[
        Literal["channel", "partition", "mesh"], typer.Argument(help="What to show the state of.")
    ],
    name: Annotated[str, typer.Argument(help="APP/CHANNEL, the partition, or the mesh's id.")],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MAX_ROWS, help="Most rows to print.")
    ] = 100,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a channel, a sync partition or a mesh was at a position or a time.

    Example: tidelog pipeline as-of 2026-05-01T12:00Z channel app/room
    """
    conf_pairs(conf)
    moment = _moment(at)
    with workspace_at(config, data_dir, store, lake) as workspace:
        from tidelog.pipeline.as_of import as_of as look_back

        through = workspace.lake.through("log")
        if isinstance(moment, int) and not 0 <= moment <= through:
            raise TidelogError(
                f"position {moment} is not in the lake, which is complete through {through}. "
                "Ingest first: `tidelog pipeline ingest`."
            )
        model = workspace.model_source() if kind == "partition" else None
        with spark_for(master, conf, through) as spark:
            state = look_back(spark, workspace.lake, moment, kind, name, model)
            rows = [row.asDict() for row in state.rows.limit(limit).collect()]
    if as_json:
        described = {"kind": kind, "name": name, "committed_id": state.committed_id}
        print_json({**described, "counts": state.counts, "rows": rows})
        return
    _show_rows(SHOWN[kind], rows)
    counts = ", ".join(f"{count:,} {printable(what)}" for what, count in state.counts.items())
    typer.echo(f"as of {state.committed_id:,}: {counts or 'nothing'}; {len(rows)} rows shown")


def _moment(text: str) -> int | datetime:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text}: neither a committed_id nor a time such as 2026-05-01T12:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"the time {text} has no zone: write {text}Z, or an offset")
    return moment


def _show_rows(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table()
    for column in columns:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*(Text(_cell(row[column])) for column in columns))
    Console().print(shown)


def _cell(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    text = "" if value is None else printable(str(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def report(
    *,
    output: OutputOption = None,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one page with plots of the tables; it works offline. Starts no JVM.

    Example: tidelog pipeline report --output /tmp/report.html
    """
    with workspace_at(config, data_dir, store, lake) as workspace:
        written = write_page(workspace, output)
    if as_json:
        print_json(written)
    else:
        show_page(written)


def write_page(workspace: Workspace, output: Path | None) -> dict[str, Any]:
    """Write the page; returns where it is and its size."""
    from tidelog.pipeline.report import write_report

    path = (output or workspace.lake.root / PAGE_NAME).absolute()
    return {"path": str(path), "bytes": write_report(workspace.lake, workspace.store, path)}


def show_page(written: dict[str, Any]) -> None:
    """Say where the page is."""
    typer.echo(f"report: {written['path']} ({written['bytes']:,} bytes)")
