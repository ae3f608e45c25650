"""`tidelog sync`: administer the sync surface of a running server."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.terminal import printable
from tidelog.cli.shared.admin_api import UrlOption, ask
from tidelog.cli.shared.options import ConfigOption, JsonOption

app = typer.Typer(help="Administer the sync surface of a running server.", no_args_is_help=True)


_OFF = (
    "does not serve sync. Set sync.jwt_secret or sync.jwt_key_file for the server and start it "
    "again, or name another with --url."
)


def _ask(
    config: Path | None, url: str | None, method: str, path: str, body: object = None
) -> dict[str, Any]:
    return ask(config, url, method, path, body, absent=_OFF)


def _write_new(path: Path, text: str) -> None:
    """Write a file that only its owner can read; what is there already is not overwritten."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise TidelogError(
            f"{path} cannot be written: {error.strerror}. Name another file."
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


@app.command("model-version")
def model_version(
    version: Annotated[
        int | None, typer.Argument(help="The version to set; without it, show the current one.")
    ] = None,
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the model version; setting it tells every connected client of the event profile.

    Example: tidelog sync model-version 4
    """
    if version is None:
        result = _ask(config, url, "GET", "sync/admin/model-version")
        text = str(result["model_version"])
    else:
        result = _ask(config, url, "PUT", "sync/admin/model-version", {"model_version": version})
        text = f"{result['old_model_version']} -> {result['new_model_version']}"
    typer.echo(json.dumps(result) if as_json else text)


@app.command()
def connections(
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List connected clients, their subscriptions, and how far each has caught up.

    Example: tidelog sync connections --json
    """
    result = _ask(config, url, "GET", "sync/admin/connections")
    if as_json:
        typer.echo(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    last = result["last_committed_id"]
    table = Table(title=f"{len(result['connections'])} clients, last event {last}")
    for name in ("client", "profile", "subscriptions", "cursor", "behind"):
        table.add_column(name, justify="right" if name in ("cursor", "behind") else "left")
    for row in result["connections"]:
        table.add_row(
            Text(printable(row["client_id"])),
            row["profile"],
            Text(printable(", ".join(row["subscriptions"]))),
            str(row["cursor"]),
            str(last - row["cursor"]),
        )
    Console().print(table)


@app.command()
def snapshot(
    partition: Annotated[str, typer.Argument(help="Name of the partition.")],
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the server store a snapshot of a partition, so that a cold start need not replay it.

    Example: tidelog sync snapshot team-7
    """
    result = _ask(config, url, "PUT", "sync/admin/snapshot", {"partition": partition})
    text = f"{printable(result['partition'])} stored as of {result['committed_id']}"
    if not result["committed_id"]:
        text += ": it has no events yet; is its name right?"
    typer.echo(json.dumps(result) if as_json else text)


@app.command()
def retention(
    through: Annotated[int, typer.Argument(help="Last committed_id to archive.")],
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Archive events up to a position, if each of their partitions has a later snapshot.

    Archived events are still synced; only the log's own copy of their content is removed.

    Example: tidelog sync retention 100000
    """
    result = _ask(config, url, "POST", "sync/admin/retention", {"through": through})
    typer.echo(json.dumps(result) if as_json else f"{result['archived']} events archived")


@app.command()
def drafts(
    file: Annotated[Path, typer.Argument(help="The client's file; no client may have it open.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write them to this new file, as JSON.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Save the drafts in a client's file, even a damaged one, so that they can be submitted again.

    The JSON is a payload of submit_events; ids are kept, so that nothing is committed twice.

    Example: tidelog sync drafts tasks.db.damaged-1763337600000 --output drafts.json
    """
    from tidelog.client import SavedDrafts

    saved = SavedDrafts.read(file)
    document = json.dumps(
        {
            **({} if saved.client_id is None else {"client_id": saved.client_id}),
            "events": saved.drafts,
            "unreadable": saved.unreadable,
        },
        ensure_ascii=False,
    )
    if output is not None:
        _write_new(output, document + "\n")
    if as_json:
        typer.echo(document)
        return
    owner = "" if saved.client_id is None else f" of {printable(saved.client_id)}"
    typer.echo(f"{len(saved.drafts)} drafts{owner}, {saved.unreadable} more could not be read")
    if output is None and saved.drafts:
        typer.echo("Save them with --output FILE.")
