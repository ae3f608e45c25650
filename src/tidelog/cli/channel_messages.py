"""`tidelog channels publish` and the like: write into channels of a running server, and read them.

The commands do what an application's server does, with the app's secret out of the settings.
"""

import asyncio
import codecs
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from tidelog.base.terminal import printable, printable_lines
from tidelog.cli.shared.admin_api import UrlOption
from tidelog.cli.shared.channel_app import AppOption, Target, target, told
from tidelog.cli.shared.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from tidelog.channels.protocol.query import Direction
    from tidelog.client import (
        BlockingChannelPublisher,
        Message,
        MessageVersion,
        Receipt,
        Reset,
        StoredMessage,
    )


def _named(given: str) -> str:
    """Refuse what names nothing, such as a variable of a script that is not set."""
    if not given:
        raise typer.BadParameter("it is empty")
    return _utf8(given)


def _utf8(given: str) -> str:
    """Refuse bytes that are no text: what is sent is JSON."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8") from None
    return given


ChannelArgument = Annotated[str, typer.Argument(callback=_named, help="Name of the channel.")]
MessageArgument = Annotated[str, typer.Argument(callback=_named, help="Serial of the message.")]
ChangeOption = Annotated[
    str | None, typer.Option("--id", help="Names the change: repeated, it is made once.")
]

FROM_INPUT = "- reads standard input, and -- stands before one that begins with a dash"

READ_BYTES = 65_536
_SHOWN_CHARACTERS = 120


def publish(
    channel: ChannelArgument,
    event: Annotated[str, typer.Argument(callback=_utf8, help="Name of the event.")],
    data: Annotated[
        str,
        typer.Argument(callback=_utf8, help=f"Its data, a text, which may be JSON; {FROM_INPUT}."),
    ],
    *,
    message_id: Annotated[
        str | None,
        typer.Option("--id", help="Names it in its channel: repeated, it is published once."),
    ] = None,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish an event; the serial that is printed is what the commands that change it take.

    Example: tidelog channels publish room-7 chat.message '{"text":"hi"}'
    """
    to = target(config, url, app_id)
    text = _whole_input() if data == "-" else data
    with told(to.url), to.publisher() as publisher:
        receipt = publisher.publish(channel, event, text, message_id=message_id)
    _show(receipt, as_json=as_json)


def append(
    channel: ChannelArgument,
    message: MessageArgument,
    text: Annotated[str, typer.Argument(callback=_utf8, help=f"What is added; {FROM_INPUT}.")],
    *,
    op_id: ChangeOption = None,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add text to a message.

    Example: tidelog channels append room-7 "$SERIAL" " and more"
    """
    to = target(config, url, app_id)
    added = _whole_input() if text == "-" else text
    with told(to.url), to.publisher() as publisher:
        receipt = publisher.append(channel, message, added, op_id=op_id)
    _show(receipt, as_json=as_json)


def update(
    channel: ChannelArgument,
    message: MessageArgument,
    data: Annotated[
        str,
        typer.Argument(
            callback=_utf8, help=f"Its new data, a text, which may be JSON; {FROM_INPUT}."
        ),
    ],
    *,
    op_id: ChangeOption = None,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the data of a message; `versions` shows what it was.

    Example: tidelog channels update room-7 "$SERIAL" "what it says now"
    """
    to = target(config, url, app_id)
    text = _whole_input() if data == "-" else data
    with told(to.url), to.publisher() as publisher:
        receipt = publisher.update(channel, message, data=text, op_id=op_id)
    _show(receipt, as_json=as_json)


def delete(
    channel: ChannelArgument,
    message: MessageArgument,
    *,
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove its data too; earlier versions keep theirs.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; a description of this version.")
    ] = None,
    op_id: ChangeOption = None,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark a message as deleted; its versions stay. To erase them too: `tidelog channels forget`.

    Example: tidelog channels delete room-7 "$SERIAL" --clear --reason "posted twice"
    """
    to = target(config, url, app_id)
    fields: tuple[Literal["data"], ...] = ("data",) if clear else ()
    with told(to.url), to.publisher() as publisher:
        receipt = publisher.delete(channel, message, clear=fields, description=reason, op_id=op_id)
    _show(receipt, as_json=as_json)


def stream(
    channel: ChannelArgument,
    event: Annotated[str, typer.Argument(help="Name of the event.")] = "answer",
    *,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish standard input as a message that grows as it comes.

    The message is complete at the end of the input; interrupted, it is cancelled. Whatever prints
    can be read so: ask-model "Why is there a tide?" | tidelog channels stream room-7

    Example: tidelog channels stream room-7 answer < answer.txt
    """
    to = target(config, url, app_id)
    with told(to.url), to.publisher() as publisher, publisher.stream(channel, event) as answer:
        for text in _pieces():
            answer.write(text)
    if as_json:
        typer.echo(json.dumps({"channel": channel, "message_serial": answer.message_serial}))
    else:
        typer.echo(answer.message_serial)


def history(
    channel: ChannelArgument,
    *,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many messages.")] = 20,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="From the first message on, not the last ones.")
    ] = False,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a channel as they are now, in their order; the last 20 by default.

    Example: tidelog channels history room-7 -n 5 --json
    """
    to = target(config, url, app_id)
    direction = _direction(oldest_first=oldest_first)
    with told(to.url), to.publisher() as publisher:
        messages = publisher.messages(channel, direction=direction)
        found = [message for _, message in zip(range(count), messages, strict=False)]
    with _for_reader():
        for message in found if oldest_first else reversed(found):
            _print(_as_json(message) if as_json else _line(message))
    if not found and not as_json:
        sys.stderr.write(f"tidelog: {printable(channel)} has no messages\n")


def versions(
    channel: ChannelArgument,
    message: MessageArgument,
    *,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many versions.")] = 20,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="From the first version on, not the last ones.")
    ] = False,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the versions of a message in their order; the last 20 by default.

    An append is shown as the text that it added, any other version as the whole data.

    Example: tidelog channels versions room-7 "$SERIAL" --oldest-first
    """
    to = target(config, url, app_id)
    with told(to.url), to.publisher() as publisher:
        found = _versions(publisher, channel, message, count, _direction(oldest_first=oldest_first))
    with _for_reader():
        for version in found if oldest_first else reversed(found):
            if as_json:
                _print(json.dumps(msgspec.to_builtins(version)))
            else:
                note = f" ({version.description})" if version.description else ""
                what = f"{version.action}{note}"
                _print(_dated(version.timestamp_ms, version.version_serial, what, _text(version)))


def watch(
    channel: ChannelArgument,
    *,
    rewind: Annotated[
        int, typer.Option("--rewind", min=0, help="Begin with so many messages that are there.")
    ] = 0,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", min=1, help="End after so many messages are complete."),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", help="As whom a presence channel is joined.")
    ] = "tidelog-watch",
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print messages as they are published and as they grow, until interrupted.

    With --json each state of a message is one line, whole each time.

    Example: tidelog channels watch room-7 --rewind 10
    """
    to = target(config, url, app_id)
    with told(to.url), to.publisher() as publisher:
        publisher.channel(channel)  # a server that is not there would be waited for in silence
    with _for_reader():
        asyncio.run(_watch(to, channel, rewind, count, user, as_json=as_json))


async def _watch(
    to: Target, name: str, rewind: int, count: int | None, user: str, *, as_json: bool
) -> None:
    from tidelog.client import Authorization, ChannelClient

    publisher = to.publisher()
    show = _JsonLines() if as_json else _GrowingText()
    complete: set[str] = set()

    async def authorize(channel: str, socket_id: str) -> Authorization:
        is_presence = channel.startswith("presence-")
        return publisher.authorization(channel, socket_id, user_id=user if is_presence else None)

    def was_reset(reset: "Reset") -> None:
        sys.stderr.write(
            f"tidelog: {printable(reset.channel)} begins anew, what was missed cannot be shown: "
            f"{reset.reason}\n"
        )

    socket_url = to.url.replace("http", "ws", 1)
    async with (
        ChannelClient(socket_url, to.app.key, authorize=authorize) as client,
        client.subscribe(name, rewind=rewind, on_reset=was_reset) as channel,
    ):
        async for message in channel:
            show(message)
            if message.status != "streaming":
                complete.add(message.serial)
            if count is not None and len(complete) >= count:
                show.end()
                return


def cancel(
    channel: ChannelArgument,
    run: Annotated[str | None, typer.Argument(help="Id of the run.")] = None,
    *,
    client: Annotated[
        str | None, typer.Option("--client", help="Instead: all runs of this client.")
    ] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Instead: all runs.")] = False,
    app_id: AppOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the agents of a channel to stop a run, those of a client, or all.

    It is published for whoever runs them; they end them.

    Example: tidelog channels cancel room-7 run-17
    """
    if sum((run is not None, client is not None, all_runs)) != 1:
        raise typer.BadParameter("name a run, or --client, or --all")
    to = target(config, url, app_id)
    with told(to.url), to.publisher() as publisher:
        receipt = publisher.cancel(channel, run, client_id=client, all_runs=all_runs)
    _show(receipt, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    """Make them commands of `tidelog channels`."""
    for command in (publish, append, update, delete, stream, watch, history, versions, cancel):
        app.command()(command)


# What is read and printed.


def _direction(*, oldest_first: bool) -> "Direction":
    return "oldest_first" if oldest_first else "newest_first"


def _versions(
    publisher: "BlockingChannelPublisher",
    channel: str,
    message: str,
    count: int,
    direction: "Direction",
) -> "list[MessageVersion]":
    """So many of them at most, read page by page."""
    found: list[MessageVersion] = []
    cursor: str | None = None
    while True:
        page = publisher.versions(channel, message, direction=direction, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None or len(found) >= count:
            return found[:count]


def _whole_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("standard input is not UTF-8") from None


def _pieces() -> Iterator[str]:
    """Standard input as it comes; characters are never split."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := os.read(sys.stdin.fileno(), READ_BYTES):
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _show(receipt: "Receipt", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(receipt)))
    else:
        # An event of a channel that keeps none has no serial; its key says which it was.
        typer.echo(receipt.message_serial or receipt.key)


class _JsonLines:
    """Each state on a line."""

    def __call__(self, message: "Message") -> None:
        _print(_as_json(message))

    def end(self) -> None:
        """Nothing is left open."""


class _GrowingText:
    """Text that grows where it stands, as long as nothing else comes in between."""

    def __init__(self) -> None:
        self._serial = ""
        self._shown = ""

    def __call__(self, message: "Message") -> None:
        text = _text(message)
        is_same = message.serial == self._serial and text.startswith(self._shown)
        if is_same and not message.is_deleted:
            _write(printable_lines(text[len(self._shown) :]))
        else:
            self.end()
            mark = " (deleted)" if message.is_deleted else ""
            _write(f"{printable(message.name or '')}{mark}: {printable_lines(text)}")
        self._serial, self._shown = message.serial, text
        if message.status != "streaming":
            self.end()

    def end(self) -> None:
        """End the line that may still grow."""
        if self._serial:
            _write("\n")
        self._serial = self._shown = ""


def _text(message: "Message | MessageVersion") -> str:
    data = message.data
    if data is None:
        return ""
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _line(message: "StoredMessage") -> str:
    mark = {"streaming": " (streaming)", "cancelled": " (cancelled)"}.get(message.status or "", "")
    mark = " (deleted)" if message.is_deleted else mark
    what = f"{message.name or ''}{mark}"
    return _dated(message.published_at_ms, message.serial, what, _text(message))


def _dated(at_ms: int, serial: str, what: str, text: str) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return printable(f"{at}Z  {serial}  {what}: {text}")


def _as_json(message: "Message") -> str:
    row = msgspec.to_builtins(message)
    row["status"] = message.status
    return json.dumps(row)


def _print(line: str) -> None:
    _write(f"{line}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _for_reader() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()  # whoever read us has gone; Python would complain about it at exit
