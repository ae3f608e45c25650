"""`tidelog log tail` and `tidelog log stats`, and the help of every command."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import Result

from support.cli.inside import invoked
from support.log.nodes import LOG_ID, put_item, running_node, whole_log
from tidelog.base.errors import StoreUnavailable
from tidelog.cli.commands import app
from tidelog.log.draft import Draft
from tidelog.store.rows import Entry, SurfaceStats


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside the test, and room enough for the table."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str) -> Result:
    """A command that succeeds, on the log in ./data."""
    result = invoked([*arguments, "--data-dir", "data"])
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def log() -> list[Entry]:
    """A log of 30 entries on two streams in ./data; the first two of stream `a` are pruned."""

    async def write() -> list[Entry]:
        async with running_node("data/tidelog.db") as node:
            await node.put_many([put_item("ab"[n % 2], f"k{n}", b'"%d"' % n) for n in range(28)])
            await node.append(Draft("other", "other", "raw", "e", "r", "\u00e9", b"\xff{", b"\0\1"))
            await node.append(Draft("other", "other", "raw", "long", "", "", b"x" * 500))
            await node.prune("a", 2)
            return await whole_log(node.store)

    return asyncio.run(write())


def test_tail_shows_the_last_twenty(log: list[Entry]) -> None:
    """Without options the last 20 entries are printed, one line each, in order."""
    lines = run("log", "tail").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(11, 31))
    assert lines[0].split()[1:5] == ["08:53:20Z", "probe/a#6", "put", "k10"]
    assert '{"value":"10","weight":1}' in lines[0]
    assert len(log) == 30


def test_tail_shows_controls_and_does_not_obey_them() -> None:
    """Whoever wrote an entry cannot move the cursor of whoever reads it."""

    async def write() -> None:
        async with running_node("data/tidelog.db") as node:
            await node.append(Draft("s", "s", "raw", "e", "", "", "a\x9b2J\u202eb\nc".encode()))

    asyncio.run(write())
    [line] = run("log", "tail").stdout.splitlines()
    assert line.endswith("a 2J b c")


@pytest.mark.usefixtures("log")
def test_tail_begins_where_it_is_told() -> None:
    """--from names the first position that is shown; one beyond the end shows nothing."""
    lines = run("log", "tail", "--from", "3").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(3, 31))
    assert run("log", "tail", "--from", "31").stdout == ""
    assert run("log", "tail", "--from", str(2**63 - 1)).stdout == ""


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("start", ["0", "-1", str(2**63), str(10**30)])
def test_tail_refuses_a_position_that_cannot_be(start: str) -> None:
    """Positions begin at 1 and fit into 64 bits; anything else is a wrong command."""
    result = invoked(["log", "tail", "--from", start, "--data-dir", "data"])
    assert result.exit_code == 2
    assert "--from" in result.stderr


@pytest.mark.usefixtures("log")
def test_tail_shows_what_was_pruned() -> None:
    """An emptied entry keeps its line and says that its content is gone."""
    first, second, third = run("log", "tail", "--from", "1").stdout.splitlines()[:3]
    assert first.endswith("probe/a#1  put  k0  (pruned)")
    assert third.endswith("probe/a#2  put  k2  (pruned)")
    assert second.endswith('k1  {"value":"1","weight":1}')


@pytest.mark.usefixtures("log")
def test_tail_shortens_long_bodies() -> None:
    """A line stays readable: a long body is cut and marked."""
    line = run("log", "tail", "--from", "30").stdout.rstrip("\n")
    assert line.endswith("  " + "x" * 119 + "\u2026")


def test_tail_json_has_every_column(log: list[Entry]) -> None:
    """With --json one object per line: the columns by name, bytes as hex, the body as text."""
    lines = run("log", "tail", "--json", "--from", "1").stdout.splitlines()
    assert len(lines) == len(log)
    for line, entry in zip(map(json.loads, lines), log, strict=True):
        assert tuple(line) == Entry._fields
        for name in ("committed_id", "stream", "stream_serial", "entity", "actor", "committed_at"):
            assert line[name] == getattr(entry, name)
        assert bytes.fromhex(line["digest"]) == entry.digest
        assert bytes.fromhex(line["body_digest"]) == entry.body_digest
    shown = [json.loads(line) for line in lines]
    assert (shown[0]["body"], shown[0]["data"]) == (None, None)
    assert shown[1]["body"] == '{"value":"1","weight":1}'
    assert (shown[28]["body"], shown[28]["data"]) == ("\ufffd{", "0001")


def test_stats_json(log: list[Entry]) -> None:
    """With --json: the log's name, head, digest, keys and the sums of every surface."""
    stats = json.loads(run("log", "stats", "--json").stdout)
    assert list(stats) == ["log_id", "incarnation", "head", "digest", "dedupe_keys", "surfaces"]
    assert (stats["log_id"], stats["head"], stats["dedupe_keys"]) == (LOG_ID, 30, 28)
    assert stats["digest"] == log[-1].digest.hex()
    other, probe = stats["surfaces"]
    assert tuple(probe) == SurfaceStats._fields
    assert (other["surface"], other["entries"], other["streams"], other["pruned"]) == (
        *("other", 2, 1, 0),
    )
    assert other["content_bytes"] == 2 + 2 + 500
    assert (probe["surface"], probe["entries"], probe["streams"], probe["pruned"]) == (
        *("probe", 28, 2, 2),
    )
    assert probe["content_bytes"] == sum(len(entry.body or b"") for entry in log[:28])
    assert probe["first_at"] == probe["last_at"] == log[0].committed_at


@pytest.mark.usefixtures("log")
def test_stats_table() -> None:
    """Without options a table of the same sums, with the log's name and head above it."""
    output = run("log", "stats").stdout
    assert f"log {LOG_ID}: head 30, 28 keys remembered" in output
    rows = [line.replace("\u2502", " ").split() for line in output.splitlines()]
    assert ["other", "2", "1", "0", "504"] in rows
    assert any(row[:4] == ["probe", "28", "2", "2"] for row in rows)


def test_stats_of_an_empty_log() -> None:
    """A log without entries has a head of 0 and no surfaces."""

    async def create() -> None:
        async with running_node("data/tidelog.db"):
            pass

    asyncio.run(create())
    stats = json.loads(run("log", "stats", "--json").stdout)
    assert (stats["head"], stats["dedupe_keys"], stats["surfaces"]) == (0, 0, [])
    assert run("log", "tail").stdout == ""


@pytest.mark.parametrize("command", ["tail", "stats", "verify"])
def test_a_missing_log_is_explained(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No log: one line says where it was looked for and what to do; exit 1, and no file is made."""
    from tidelog.cli.main import main

    monkeypatch.setattr("sys.argv", ["tidelog", "log", command, "--data-dir", "nowhere"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tidelog: there is no log at /")
    assert "/nowhere/tidelog.db. Start a server" in printed.err
    assert "--data-dir" in printed.err
    assert printed.err.count("\n") == 1
    assert not Path("nowhere").exists()
    with pytest.raises(StoreUnavailable):
        run("log", command)


def commands() -> list[list[str]]:
    """Every command there is, by its words."""
    found = []
    pending: list[tuple[list[str], object]] = [([], typer.main.get_command(app))]
    while pending:
        words, command = pending.pop()
        children = getattr(command, "commands", None)
        if children is None:
            found.append(words)
        else:
            pending += [([*words, name], child) for name, child in children.items()]
    return sorted(found)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_shows_an_example(words: list[str]) -> None:
    """--help of a command ends with an example of its use."""
    result = invoked([*words, "--help"])
    assert result.exit_code == 0
    assert f"Example: tidelog {' '.join(words)}" in " ".join(result.stdout.split())


def test_all_commands_are_covered() -> None:
    """The list above finds the commands of every group."""
    assert {"backup", "restore", "serve", "log tail", "log stats", "log verify"} <= {
        " ".join(words) for words in commands()
    }
