"""`tidelog sync`: administer the sync surface of a running server."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.terminal import printable
from tidelog.cli.options import ConfigOption, JsonOption, settings_from
from tidelog.cli.running_server import administration

app = typer.Typer(help="Administer the sync surface of a running server.", no_args_is_help=True)

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Where the server answers; default from the settings.")
]


def call(
    config: Path | None, url: str | None, method: str, path: str, body: object = None
) -> dict[str, Any]:
    """Ask the server's admin API."""
    base, token = administration(settings_from(config), url)
    request = urllib.request.Request(  # noqa: S310 - the operator names the server
        f"{base}/sync/admin/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            result: dict[str, Any] = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        with error:
            text = printable(error.read().decode("utf-8", "replace")[:300])
        raise TidelogError(f"{base} answered {error.code}: {text}") from error
    except OSError as error:
        raise TidelogError(
            f"{base} does not answer ({error}). Is the server running? Name another with --url."
        ) from error


@app.command("model-version")
def model_version(
    version: Annotated[int | None, typer.Argument(help="The new one; without it, show it.")] = None,
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set the model version; setting it tells every connected client of the event profile.

    Example: tidelog sync model-version 4
    """
    if version is None:
        result = call(config, url, "GET", "model-version")
        text = str(result["model_version"])
    else:
        result = call(config, url, "PUT", "model-version", {"model_version": version})
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
    result = call(config, url, "GET", "connections")
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
    """Let the server store the state of a partition, so that a cold start need not replay it.

    Example: tidelog sync snapshot team-7
    """
    result = call(config, url, "PUT", "snapshot", {"partition": partition})
    text = f"{printable(result['partition'])} stored as of {result['committed_id']}"
    if not result["committed_id"]:
        text += ": it has no events yet; is its name right?"
    typer.echo(json.dumps(result) if as_json else text)


@app.command()
def retention(
    through: Annotated[int, typer.Argument(help="Last committed_id to look at.")],
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Archive events up to a position, where every partition of theirs has a snapshot beyond them.

    Archived events are still synced; only the log's own copy of their content goes.

    Example: tidelog sync retention 100000
    """
    result = call(config, url, "POST", "retention", {"through": through})
    typer.echo(json.dumps(result) if as_json else f"{result['archived']} events archived")
