"""Drafts are read out of a client's file, whatever became of it, and submitted again."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.cli.inside import invoked
from support.sync.peer import MODEL, TREE, connected, outcome, sync_server, token
from tidelog.base.errors import StoreUnavailable, TidelogError
from tidelog.client import SavedDrafts, SyncClient
from tidelog.client.sync.messages import Commit
from tidelog.client.sync.store import SyncStore
from tidelog.sync.protocol.profiles import Model

DRAFTS = 100


def event(number: int) -> dict[str, Any]:
    """An event with a mark that is found in the file."""
    value = {"id": f"n{number:03}", "text": f"<{number:03}>" + "y" * 300}
    return {"type": "treePush", "payload": {"target": "t", "value": value}}


def written(path: Path) -> None:
    """A file with committed events and drafts, the last of them still in its WAL."""
    store = SyncStore(path, client_id="ada", model_version=3, now=lambda: 1)
    commits = [Commit(f"e{n}", "bo", ("p",), n, 1, event(900 + n)) for n in range(1, 50)]
    store.store_page(commits, ["p"], 49)
    for number in range(DRAFTS):
        store.add_draft(f"d{number:03}", ["p"], event(number))
    store.close()


def overwrite(path: Path, start: int, size: int) -> bytes:
    """Damage a file; returns what it is now."""
    content = bytearray(path.read_bytes())
    content[start : start + size] = b"\xa5" * size
    path.write_bytes(content)
    return bytes(content)


def page_of(path: Path, mark: bytes) -> int:
    """Where the page starts that has this."""
    return path.read_bytes().index(mark) // 4096 * 4096


def test_a_whole_file_has_all_of_them(tmp_path: Path) -> None:
    """In their order, and nothing that is not a draft of its owner."""
    path = tmp_path / "ada.db"
    written(path)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE events SET status = 'rejected' WHERE id = 'd001'")
        file.execute("UPDATE events SET client_id = 'bo' WHERE id = 'd002'")
        file.execute("UPDATE events SET payload = '{' WHERE id = 'd003'")
    file.close()
    saved = SavedDrafts.read(path)
    expected = [f"d{number:03}" for number in range(DRAFTS) if number not in (1, 2, 3)]
    assert [draft["id"] for draft in saved.drafts] == expected
    assert saved.drafts[0] == {"id": "d000", "partitions": ["p"], "event": event(0)}
    assert (saved.client_id, saved.unreadable) == ("ada", 1)


def test_what_is_still_in_the_journal_is_found(tmp_path: Path) -> None:
    """A client that was killed has not moved it to the file."""
    path = tmp_path / "ada.db"
    store = SyncStore(path, client_id="ada", model_version=3, now=lambda: 1)
    store.add_draft("d", ["p"], event(1))
    killed = tmp_path / "killed.db"
    for companion in ("", "-wal"):
        (tmp_path / f"killed.db{companion}").write_bytes(
            (tmp_path / f"ada.db{companion}").read_bytes()
        )
    store.close()
    assert [draft["id"] for draft in SavedDrafts.read(killed).drafts] == ["d"]


@pytest.mark.parametrize("start", [0, 100])
def test_a_file_without_a_head_has_them_still(tmp_path: Path, start: int) -> None:
    """No client opens it; the drafts are on other pages. The file stays as it is."""
    path = tmp_path / "ada.db"
    written(path)
    content = overwrite(path, start, 4096 - start)
    with pytest.raises(StoreUnavailable, match="tidelog sync drafts"):
        SyncStore(path, client_id="ada", model_version=3, now=lambda: 1)
    saved = SavedDrafts.read(path)
    assert [draft["id"] for draft in saved.drafts] == [f"d{n:03}" for n in range(DRAFTS)]
    assert (saved.client_id, saved.unreadable) == ("ada", 0)
    assert path.read_bytes() == content


def test_what_is_no_such_file_is_told(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(StoreUnavailable, match="no file"):
        SavedDrafts.read(tmp_path / "none.db")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE events (id TEXT)")
    file.close()
    with pytest.raises(StoreUnavailable, match="not the file of a sync client"):
        SavedDrafts.read(other)
    rubbish = tmp_path / "rubbish.db"
    for content, problem in ((b"", "not the file"), (b"rubbish" * 5000, "no draft .* can be read")):
        rubbish.write_bytes(content)
        with pytest.raises(StoreUnavailable, match=problem):
            SavedDrafts.read(rubbish)


def run(*arguments: str) -> str:
    """What the command prints; its error is raised."""
    result = invoked(["sync", "drafts", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


async def test_drafts_of_a_damaged_file_are_submitted_again(tmp_path: Path) -> None:
    """By a client or by hand; one that was committed after all is not committed again."""
    path, output = tmp_path / "ada.db", tmp_path / "drafts.json"
    written(path)
    overwrite(path, page_of(path, b"<050>"), 4096)
    text = await asyncio.to_thread(run, str(path), "--output", str(output))
    document = json.loads(output.read_text())
    count, lost = len(document["events"]), document["unreadable"]
    assert text == f"{count} drafts of ada, {lost} more could not be read\n"
    assert (count + lost, count > 80, lost > 0) == (DRAFTS, True, True)
    assert output.stat().st_mode & 0o077 == 0
    assert json.loads(await asyncio.to_thread(run, str(path), "--json")) == document
    assert "--output" in await asyncio.to_thread(run, str(path))
    with pytest.raises(TidelogError, match="Name another file"):
        await asyncio.to_thread(run, str(path), "--output", str(output))
    assert json.loads(output.read_text()) == document
    async with sync_server(tmp_path / "server") as node:
        async with connected(node.ws_url, "ada", TREE) as peer:
            await peer.send("submit_events", document | {"events": document["events"][:10]})
            results = (await peer.wait_for("submit_events_result"))["results"]
            assert outcome(results) == ["committed"] * 10
        async with SyncClient(
            node.ws_url,
            client_id="ada",
            token=token("ada"),
            store=tmp_path / "new.db",
            model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], 3),
            partitions=["p"],
        ) as client:
            for draft in document["events"]:
                await client.submit(**draft)
            async with asyncio.timeout(30):
                await client.sync()
                while client.pending():
                    await client.wait(client.pending()[0].id)
            assert len(client.view("p")["t"]["items"]) == count
            assert client.rejected() == []
        assert (await node.counts())[0] == count
