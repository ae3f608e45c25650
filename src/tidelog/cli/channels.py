"""`tidelog channels`: write and read messages of a running server, and administer them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from tidelog.base.terminal import printable
from tidelog.cli import channel_messages
from tidelog.cli.shared.admin_api import UrlOption, ask
from tidelog.cli.shared.options import ConfigOption, JsonOption

app = typer.Typer(
    help="Write, read and watch messages of a running server, and administer them.",
    no_args_is_help=True,
)

POLL_SECONDS = 0.5
"""Pause between two questions whether an erasure is complete."""


@app.callback()
def channels() -> None:
    """Write, read and watch messages of a running server, and administer them."""


channel_messages.add_to(app)


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
            help="Only those nobody has written to for so many seconds.",
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

    The server ends them by itself after channels.ai_transport.orphan_timeout_seconds.

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


@app.command()
def forget(
    *,
    app_id: Annotated[str, typer.Option("--app", help="Id of the app.")],
    channel: Annotated[
        str | None, typer.Option("--channel", help="Everything in this channel.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option("--message", help="Only the message with this serial in the channel."),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(
            "--actor", help="Instead: every message, in any channel, that this client wrote to."
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; stored with the request.")
    ] = "forget",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase content for good; positions, times, actors and digests stay.

    The server stops serving it as soon as it accepts the request; the command returns when it is
    out of the store, and the server finishes by itself if the command is interrupted. To remove it
    from the lake, run `tidelog pipeline forget`.

    Example: tidelog channels forget --app shop --channel room-7 --yes
    """
    if (channel is None) == (actor is None):
        raise typer.BadParameter("name either --channel, with or without --message, or --actor")
    if message is not None and channel is None:
        raise typer.BadParameter("a message is in a channel: name it too, with --channel")
    if not yes:
        what = (
            f"what {actor} wrote" if actor else f"{channel}{f', message {message}' * bool(message)}"
        )
        typer.confirm(printable(f"Erase {what}? It cannot be undone."), abort=True, err=True)
    wanted = {"app_id": app_id, "channel": channel, "message_serial": message, "actor": actor}
    target = {name: value for name, value in wanted.items() if value is not None}
    answer = ask(config, url, "POST", "channels/admin/forget", {**target, "reason": reason})
    while not answer["complete"]:
        time.sleep(POLL_SECONDS)
        answer = ask(config, url, "GET", f"channels/admin/forget?{urlencode(target)}")
    typer.echo(json.dumps(answer) if as_json else "erased: nothing of it is in the store")


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
