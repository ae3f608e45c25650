"""`tidelog channels publish` and the like, and `log tail`, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import unique
from support.cli.command import run
from tidelog.client import BlockingChannelPublisher
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`tidelog serve --dev`: the commands find its app by themselves."""
    with ServerProcess(data_dir=tmp_path_factory.mktemp("dev"), arguments=("--dev",)) as process:
        process.start()
        yield process


@pytest.fixture
def app(server: ServerProcess) -> Iterator[BlockingChannelPublisher]:
    """What is there, as a program sees it."""
    with BlockingChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher:
        yield publisher


def said(server: ServerProcess, *arguments: str) -> str:
    """What a command that succeeds prints."""
    return run("channels", *arguments, "--url", server.url, check=True).stdout


def started(server: ServerProcess, *arguments: str, **pipes: Any) -> "subprocess.Popen[str]":
    """A command that is written to, or goes on for ever."""
    command = [sys.executable, "-u", "-m", "tidelog", "channels", *arguments, "--url", server.url]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **pipes)


def test_a_message_is_published_appended_to_and_read(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """The serial that one prints is what the other takes; under the same id it is done once."""
    room = unique()
    serial = said(server, "publish", room, "chat.message", "hi", "--id", "one").strip()
    assert said(server, "publish", room, "chat.message", "hi", "--id", "one").strip() == serial
    receipt = json.loads(said(server, "append", room, serial, " all", "--id", "two", "--json"))
    assert (receipt["message_serial"], receipt["is_duplicate"]) == (serial, False)
    assert json.loads(said(server, "append", room, serial, " all", "--id", "two", "--json"))[
        "is_duplicate"
    ]
    assert app.message(room, serial).data == "hi all"
    said(server, "publish", room, "second", '{"a": 1}')
    said(server, "publish", room, "third", "\x1b[2Jcleared")
    lines = said(server, "history", room, "-n", "2").splitlines()
    assert [line.split("  ", 2)[2] for line in lines] == ['second: {"a": 1}', "third:  [2Jcleared"]
    rows = [
        json.loads(line)
        for line in said(server, "history", room, "--oldest-first", "--json").splitlines()
    ]
    assert [(row["name"], row["data"], row["history_serial"]) for row in rows] == [
        ("chat.message", "hi all", 1),
        ("second", '{"a": 1}', 2),
        ("third", "\x1b[2Jcleared", 3),
    ]
    assert "has no messages" in run("channels", "history", unique(), "--url", server.url).stderr


def test_a_message_is_changed_and_deleted_and_its_versions_stay(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """Each change is made once under its id; `versions` shows all of them, or the last or first."""
    room = unique()
    serial = said(server, "publish", room, "notice", "high water at 2").strip()
    assert said(server, "update", room, serial, "high water at 14:0", "--id", "u").strip() == serial
    again = said(server, "update", room, serial, "high water at 14:0", "--id", "u", "--json")
    assert json.loads(again)["is_duplicate"]
    said(server, "append", room, serial, "5")
    assert app.message(room, serial).data == "high water at 14:05"
    why = ("--clear", "--reason", "posted\x1b[2J\x9b twice")
    assert said(server, "delete", room, serial, *why).strip() == serial
    now = app.message(room, serial)
    assert (now.is_deleted, now.data) == (True, None)
    lines = said(server, "versions", room, serial).splitlines()
    assert [line.split("  ", 2)[2] for line in lines] == [
        "create: high water at 2",
        "update: high water at 14:0",
        "append: 5",
        "delete (posted [2J  twice): ",
    ]
    assert said(server, "versions", room, serial, "--json").isascii(), "no control, no override"
    for arguments, actions in (
        (("-n", "2"), ["append", "delete"]),
        (("-n", "2", "--oldest-first"), ["create", "update"]),
    ):
        rows = said(server, "versions", room, serial, *arguments, "--json").splitlines()
        assert [json.loads(row)["action"] for row in rows] == actions
    many = said(server, "publish", room, "long", "").strip()
    for number in range(101):  # more than one page
        app.append(room, many, f"{number} ")
    rows = said(server, "versions", room, many, "-n", "102", "--json").splitlines()
    assert [json.loads(row)["data"] for row in rows] == ["", *(f"{n} " for n in range(101))]
    gone = run("channels", "delete", unique(), serial, "--url", server.url)
    assert (gone.returncode, "was not found in channel" in gone.stderr) == (1, True)


def test_standard_input_is_streamed_as_it_comes_and_watched(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """Each piece is there before the next is written; the watchers see the text grow."""
    room = unique("private-x")
    app.publish(room, "before", "seen")
    watching = started(server, "watch", room, "--rewind", "5", "-n", "2")
    as_json = started(server, "watch", room, "--rewind", "5", "-n", "2", "--json")
    assert as_json.stdout is not None
    assert json.loads(as_json.stdout.readline())["data"] == "seen"
    assert watching.stdout is not None
    assert watching.stdout.readline() == "before: seen\n"
    writing = started(server, "stream", room, "answer", stdin=subprocess.PIPE)
    assert writing.stdin is not None
    written = ""
    for piece in ("The tide ", "comes in\nbecause ", "the moon… pulls"):
        writing.stdin.write(piece)
        writing.stdin.flush()
        written += piece
        row: dict[str, Any] = {}
        while row.get("data") != written:
            row = json.loads(as_json.stdout.readline())
        assert row["status"] == "streaming"
    printed, _ = writing.communicate(timeout=WAIT_SECONDS)
    rest, _ = watching.communicate(timeout=WAIT_SECONDS)
    assert rest == f"answer: {written}\n"
    last = json.loads(as_json.communicate(timeout=WAIT_SECONDS)[0].splitlines()[-1])
    assert (last["data"], last["status"]) == (written, "complete")
    assert printed.strip() == last["serial"]
    assert (writing.returncode, watching.returncode, as_json.returncode) == (0, 0, 0)


def test_an_interrupted_stream_is_cancelled(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """As one whose writer failed."""
    room = unique()
    watching = started(server, "watch", room, "--json")
    writing = started(server, "stream", room, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writing.stdin is not None
    assert watching.stdout is not None
    writing.stdin.write("half")
    writing.stdin.flush()
    while not app.history(room).items:
        pass
    writing.send_signal(signal.SIGINT)
    writing.wait(timeout=WAIT_SECONDS)  # its input stays open, as a terminal's does
    writing.communicate(timeout=WAIT_SECONDS)
    [message] = app.history(room).items
    assert (message.data, message.status) == ("half", "cancelled")
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=WAIT_SECONDS)


def test_runs_are_cancelled(server: ServerProcess, app: BlockingChannelPublisher) -> None:
    """By their id, by their client, or all; exactly one of these."""
    room = unique()
    for arguments, expected in (
        (("run-1",), {"runId": "run-1"}),
        (("--client", "ana"), {"clientId": "ana"}),
        (("--all",), {"all": True}),
    ):
        said(server, "cancel", room, *arguments)
        [newest] = app.history(room, limit=1).items
        assert (newest.name, newest.json()) == ("ai-cancel", expected)
    ended = run("channels", "cancel", room, "run-1", "--all", "--url", server.url)
    assert ended.returncode == 2


def test_errors_say_what_to_do(server: ServerProcess, tmp_path: Path) -> None:
    """No server, no app, a wrong secret, a message that is not there."""
    gone = run("channels", "publish", "room", "e", "x", "--url", "http://127.0.0.1:1")
    assert (gone.returncode, "Is the server running?" in gone.stderr) == (1, True)
    watch = run("channels", "watch", "room", "--url", "http://127.0.0.1:1")
    assert (watch.returncode, "Is the server running?" in watch.stderr) == (1, True)
    far = run(
        "channels", "publish", "room", "e", "x", "--url", "http://tides.example", cwd=tmp_path
    )
    assert (far.returncode, "TIDELOG_APP_SECRET" in far.stderr) == (2, True)
    for url in ("127.0.0.1:8080", "ftp://127.0.0.1", "foo", "http://"):
        mistaken = run("channels", "publish", "room", "e", "x", "--url", url)
        assert (mistaken.returncode, "begins with http:// or" in mistaken.stderr) == (2, True)
    for arguments in (("update", "room", ""), ("delete", ""), ("history", "")):
        nothing = run("channels", *arguments, "x", "--url", server.url)
        assert (nothing.returncode, "it is empty" in nothing.stderr) == (2, True), arguments
    serial = "00000000000000000001:none:00000000000000000001"
    absent = run("channels", "append", "room", serial, "x", "--url", server.url, "--json")
    assert absent.returncode == 1
    assert json.loads(absent.stdout)["code"] == "not_found"
    assert "tidelog channels history" in absent.stderr
    config = tmp_path / "tidelog.toml"
    config.write_text('[[apps]]\nid = "app-id"\nkey = "app-key"\nsecret = "wrong"\n')
    place = ("--url", server.url, "--config", str(config))
    wrong = run("channels", "history", "room", *place)
    assert (wrong.returncode, "those of that server?" in wrong.stderr) == (1, True)
    config.write_text(
        '[[apps]]\nid = "a"\nkey = "a"\nsecret = "x"\n[[apps]]\nid = "b"\nkey = "b"\nsecret = "x"\n'
    )
    several = run("channels", "history", "room", *place)
    assert (several.returncode, "Name one with --app" in several.stderr) == (2, True)
    unknown = run("channels", "history", "room", "--app", "c", *place)
    assert (unknown.returncode, "they have: a, b" in unknown.stderr) == (2, True)


def test_what_is_no_text_is_refused_and_what_begins_with_a_dash_is_sent(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """Whether it is an argument or standard input."""
    room = unique()
    place = ("--url", server.url)
    serial = run("channels", "publish", *place, room, "degrees", "--", "-5").stdout.strip()
    assert app.message(room, serial).data == "-5"
    for command in (("publish", room, "e"), ("append", room, serial), ("update", room, serial)):
        for data, given in (("-", b"\xff"), (b"\xff", None)):
            ended = subprocess.run(
                [sys.executable, "-m", "tidelog", "channels", *command, data, *place],
                input=given,
                capture_output=True,
                check=False,
                timeout=WAIT_SECONDS,
            )
            assert (ended.returncode, b"not UTF-8" in ended.stderr) == (2, True), ended.stderr
            assert b"Traceback" not in ended.stderr
    assert [message.data for message in app.history(room).items] == ["-5"]


def test_the_last_entries_of_a_surface_or_stream(
    server: ServerProcess, app: BlockingChannelPublisher
) -> None:
    """However far back they are, and only as many as were asked for."""
    room, busy = unique(), unique()
    for number in range(3):
        app.publish(room, "rare", str(number))
    for number in range(30):
        app.publish(busy, "often", str(number))

    def tail(*arguments: str) -> list[dict[str, Any]]:
        place = ("--data-dir", str(server.data_dir), "--json")
        printed = run("log", "tail", *arguments, *place, check=True, env=os.environ).stdout
        return [json.loads(line) for line in printed.splitlines()]

    stream = f"channels/app-id/{room}"
    assert [row["stream_serial"] for row in tail("-n", "2", "--stream", stream)] == [2, 3]
    assert [row["stream_serial"] for row in tail("--stream", stream)] == [1, 2, 3]
    assert [row["stream"] for row in tail("-n", "2", "--surface", "channels")] == [
        f"channels/app-id/{busy}"
    ] * 2
    assert [row["committed_id"] for row in tail("--from", "1", "-n", "3")] == [1, 2, 3]
    assert len(tail("-n", "7")) == 7
    assert len(tail()) == 20
    assert tail("--surface", "mesh") == []
