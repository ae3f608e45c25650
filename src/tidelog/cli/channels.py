"""`tidelog channels`: administer the channels surface of a running server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from tidelog.base.terminal import printable
from tidelog.cli.admin_api import UrlOption, ask
from tidelog.cli.options import ConfigOption, JsonOption

app = typer.Typer(help="Administer the channels surface of a running server.", no_args_is_help=True)


@app.callback()
def channels() -> None:
    """Administer the channels surface of a running server."""


@app.command()
def streams(
    *,
    app_id: Annotated[
        str | None, typer.Option("--app", help="Id of the app; default all apps.")
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", help="Name of the channel; needs --app.")
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", help="Serial of the message; default all messages.")
    ] = None,
    silent_for: Annotated[
        float,
        typer.Option(
            "--silent-for",
            min=0,
            max=86_400,
            help="Only those nobody wrote to for these seconds.",
        ),
    ] = 0.0,
    close: Annotated[
        bool,
        typer.Option(
            "--close",
            help="End them: cancelled, with the error code closed_by_operator. Needs --channel, "
            "--message or --silent-for.",
        ),
    ] = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the messages that are being streamed, or end those whose writer is gone.

    The server does so by itself after channels.ai_transport.orphan_timeout_seconds.

    Example: tidelog channels streams --app shop --channel room-7 --silent-for 20 --close
    """
    if channel is not None and app_id is None:
        raise typer.BadParameter("a channel is an app's: name the app too, with --app")
    if close and channel is None and message is None and not silent_for:
        raise typer.BadParameter("--close needs --channel, --message or --silent-for")
    found = [
        each
        for each in _open_streams(config, url, app_id, channel)
        if each["silent_seconds"] >= silent_for and message in (None, each["message_serial"])
    ]
    if close:
        for each in found:
            order = {name: each[name] for name in ("app_id", "channel", "message_serial")}
            order["silent_seconds"] = silent_for
            answer = ask(config, url, "POST", "channels/admin/streams/close", order)
            each["closed"] = answer["closed"]
    if as_json:
        typer.echo(json.dumps({"streams": found}))
    else:
        _show(found, is_closing=close)


def _open_streams(
    config: Path | None, url: str | None, app_id: str | None, channel: str | None
) -> Iterator[dict[str, Any]]:
    wanted = {"app_id": app_id, "channel": channel}
    query = {name: value for name, value in wanted.items() if value is not None}
    while True:
        page = ask(config, url, "GET", f"channels/admin/streams?{urlencode(query)}")
        yield from page["streams"]
        if page["next_cursor"] is None:
            return
        query["cursor"] = page["next_cursor"]


def _show(found: list[dict[str, Any]], *, is_closing: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"open streams: {len(found)}"
    if is_closing:
        title = f"streams ended: {sum(each['closed'] for each in found)} of {len(found)}"
    table = Table(title=title)
    for name in ("app", "channel", "message", "silent for"):
        # Folded, not cut: the serial is what --message takes.
        table.add_column(name, justify="right" if name == "silent for" else "left", overflow="fold")
    for each in found:
        table.add_row(
            Text(printable(each["app_id"])),
            Text(printable(each["channel"])),
            each["message_serial"],
            f"{each['silent_seconds']:.0f} s",
        )
    Console().print(table)
