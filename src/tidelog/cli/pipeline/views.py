"""`tidelog pipeline search`, `as-of` and `report`: what the lake shows."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidelog.base.errors import ConfigError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import (
    ConfOption,
    LakeOption,
    MasterOption,
    Workspace,
    conf_pairs,
    print_json,
    spark_for,
    waiting,
    workspace_at,
)
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption

if TYPE_CHECKING:
    from tidelog.pipeline.as_of import AsOf, Kind
    from tidelog.pipeline.lake.lake import Lake
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

        with waiting("searching", is_silent=as_json):
            found = find(workspace.lake.root, query, limit, app_id=app_id, channel=channel)
            if not found.total:
                _require_places(workspace.lake, app_id, channel)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for hit in found.hits:
        console.print(*_hit(hit), sep="  ", soft_wrap=True)
    typer.echo(f"{len(found.hits)} of {found.total:,} messages; the index is at {found.through:,}")


def _require_places(lake: "Lake", app_id: str | None, channel: str | None) -> None:
    """Make sure that there are such an app and such a channel."""
    from tidelog.pipeline.lake.names import names_of, require_known

    if app_id is not None:
        require_known(lake, "app", app_id)
    if channel is not None and not any(
        name.endswith(f"/{channel}") and app_id in (None, name.partition("/")[0])
        for name in names_of(lake, "channel")
    ):
        require_known(lake, "channel", f"{app_id}/{channel}" if app_id else channel)


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
        state = _looked_back(workspace, moment, (kind, name), limit, as_json, (master, conf))
    rows = state.rows.to_pylist()
    if as_json:
        described = {"kind": kind, "name": name, "committed_id": state.committed_id}
        print_json({**described, "counts": state.counts, "rows": rows})
        return
    _show_rows(SHOWN[kind], rows)
    counts = ", ".join(f"{count:,} {printable(what)}" for what, count in state.counts.items())
    typer.echo(f"as of {state.committed_id:,}: {counts or 'nothing'}; {len(rows)} rows shown")


def _looked_back(
    workspace: Workspace,
    moment: int | datetime,
    what: "tuple[Kind, str]",
    limit: int,
    is_silent: bool,
    spark: tuple[str | None, list[str] | None],
) -> "AsOf":
    """The state then, with Spark only if it takes that."""
    from tidelog.pipeline.as_of import as_of as with_spark
    from tidelog.pipeline.as_of import as_of_here, position_at

    lake, (kind, name) = workspace.lake, what
    with waiting(f"reading {kind} {printable(name)}", is_silent=is_silent):
        position = position_at(lake, moment)
        model = workspace.model_source() if kind == "partition" else None
        state = as_of_here(lake, position, kind, name, model, limit)
    if state is not None:
        return state
    with (
        waiting(f"folding {kind} {printable(name)} with Spark", is_silent=is_silent),
        spark_for(*spark, lake.through("log")) as session,
    ):
        return with_spark(session, lake, position, kind, name, model, limit)


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
        written = write_page(workspace, output, is_silent=as_json)
    if as_json:
        print_json(written)
    else:
        show_page(written)


def write_page(
    workspace: Workspace, output: Path | None, *, is_silent: bool = True
) -> dict[str, Any]:
    """Write the page; returns where it is and its size."""
    from tidelog.pipeline.report import write_report
    from tidelog.pipeline.report.figures import STEPS

    path = (output or workspace.lake.root / PAGE_NAME).absolute()
    with waiting("reading the tables", is_silent=is_silent) as show:
        size = write_report(
            workspace.lake,
            workspace.store,
            path,
            lambda step: show(STEPS.index(step), len(STEPS)),
        )
    return {"path": str(path), "bytes": size}


def show_page(written: dict[str, Any]) -> None:
    """Say where the page is."""
    typer.echo(f"report: {written['path']} ({written['bytes']:,} bytes)")
