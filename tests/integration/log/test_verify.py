"""Verification finds every change, where it is, and nothing in a log that is sound."""

import asyncio
import itertools
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest

from support.cli.command import run as run_command
from support.cli.inside import invoked
from support.log.nodes import put_item, running_node, verdict, whole_log
from tidelog.base.errors import StoreError
from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft
from tidelog.log.verify import verify as walk
from tidelog.store import open_store
from tidelog.store.rows import Entry

SAMPLE = 3
"""Position of the entry that is changed; it has a value in every column."""

LAST = 5

BITS = int(os.environ.get("TIDELOG_TEST_SOAK_BITS", "1"))
"""How many bits of each byte of a row in the file are flipped; `scripts/soak` flips all eight."""

SAMPLE_DRAFT = Draft(
    "probe/s", "probe", "put", "entity-3", "ref \u00e9", "actor", b'{"v":"marker"}', b"\0\xff\x80"
)


class Editor:
    """Changes stored rows behind the store's back."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._server: Any = None

    async def __aenter__(self) -> Self:
        if self._location.startswith("postgresql://"):
            path = {"search_path": "tidelog, public"}
            self._server = await asyncpg.connect(self._location, server_settings=path)
        else:
            self._file = sqlite3.connect(self._location, isolation_level=None)
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._server is None:
            self._file.close()
        else:
            await self._server.close()

    async def run(self, statement: str) -> None:
        """Run one or several statements."""
        if self._server is None:
            self._file.executescript(statement)
        else:
            await self._server.execute(statement)

    async def set(self, column: str, value: object, *, is_text: bool) -> bool:
        """Store a value (a text as bytes) in the sample; False if the engine refuses it."""
        where = "committed_id = 3" if column == "entity" else "entity = 'entity-3'"
        try:
            if self._server is None:
                mark = "CAST(? AS TEXT)" if is_text else "?"
                self._file.execute(f"UPDATE log SET {column} = {mark} WHERE {where}", (value,))
            else:
                mark = "convert_from($1, 'UTF8')" if is_text else "$1"
                await self._server.execute(f"UPDATE log SET {column} = {mark} WHERE {where}", value)
        except (sqlite3.IntegrityError, asyncpg.PostgresError):
            return False
        return True


async def write_log(location: str, *, is_pruned: bool = False) -> None:
    """Five entries on two streams; the sample has a value in every column."""
    async with running_node(location) as node:
        await node.append(Draft("probe/s", "probe", "put", "entity-1", "", "", b"{}"))
        await node.append(Draft("probe/t", "probe", "put", "entity-2", "", "", b"[2]"))
        await node.append(SAMPLE_DRAFT)
        await node.append(Draft("probe/s", "probe", "put", "entity-4", "", "", b"4", b""))
        await node.append(Draft("probe/t", "probe", "put", "entity-5", "", "", b"5"))
        if is_pruned:
            await node.prune("s", 2)


def flipped(value: object, *, bits: int) -> Iterator[tuple[object, bool]]:
    """The value with one bit changed, for `bits` bits of every byte, and whether it is a text."""
    if value is None:
        return
    raw = (
        value.to_bytes(8, "big", signed=True)
        if isinstance(value, int)
        else value.encode()
        if isinstance(value, str)
        else value
    )
    assert isinstance(raw, bytes)
    for index, shift in itertools.product(range(len(raw)), range(bits)):
        changed = bytearray(raw)
        changed[index] ^= 1 << ((index + shift) % (8 if bits == 8 else 7))
        if isinstance(value, int):
            yield int.from_bytes(changed, "big", signed=True), False
        else:
            yield bytes(changed), isinstance(value, str)


@pytest.mark.parametrize("is_pruned", [False, True], ids=["whole", "pruned"])
async def test_every_flipped_bit_of_an_entry_is_found(
    engine: str, store_location: str, is_pruned: bool
) -> None:
    """Any one bit of any column, wherever it is stored: found, and at its position (L7)."""
    await write_log(store_location, is_pruned=is_pruned)
    reader = await open_store(SCHEMA, store_location, log_id="", node="", read_only=True)
    found: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    async with Editor(store_location) as editor:
        sample = (await reader.entries(SAMPLE - 1, limit=1))[0]
        for column, value in sample._asdict().items():
            for changed, is_text in flipped(value, bits=8 if engine == "sqlite" else 1):
                if not await editor.set(column, changed, is_text=is_text):
                    refused[column] += 1  # the engine itself has no place for it
                    continue
                last = await verdict(reader)
                moved_to_front = (
                    column == "committed_id" and isinstance(changed, int) and changed < 1
                )
                assert last.finding, (column, changed)
                assert last.finding.committed_id == (1 if moved_to_front else SAMPLE), (
                    column,
                    changed,
                )
                assert last.verified == last.finding.committed_id - 1
                found[column] += 1
                original = value.encode() if isinstance(value, str) else value
                assert await editor.set(column, original, is_text=is_text)
        assert (await verdict(reader)).finding is None
    await reader.close()
    assert set(found) == {name for name, value in sample._asdict().items() if value is not None}
    # Positions that are taken, and (PostgreSQL) texts that are not UTF-8, cannot be stored.
    assert sum(refused.values()) <= 8, refused


def verify(location: str) -> tuple[int, dict[str, Any]]:
    """`tidelog log verify --json`: exit code and what it printed."""
    result = invoked(["log", "verify", "--json", "--store", location])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    answer: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, answer


def change(location: str, statement: str) -> None:
    """Run a statement behind the store's back."""

    async def run() -> None:
        async with Editor(location) as editor:
            await editor.run(statement)

    asyncio.run(run())


def move(source: int, target: int) -> str:
    """The statement that gives an entry another position."""
    return f"UPDATE log SET committed_id = {target} WHERE committed_id = {source};"


def copy(source: int, target: int, serial: int) -> str:
    """The statement that adds a copy of an entry at another position."""
    return f"""INSERT INTO log
        SELECT {target}, stream, {serial}, surface, kind, entity, ref, actor, committed_at,
               body, data, body_digest, digest FROM log WHERE committed_id = {source};"""


def give(columns: str, source: int, target: int) -> str:
    """The statement that copies columns of one entry to another."""
    return (
        f"UPDATE log SET ({columns}) = (SELECT {columns} FROM log l "
        f"WHERE l.committed_id = {source}) WHERE committed_id = {target};"
    )


DAMAGES = {
    "stream": ("UPDATE log SET stream = 'probe/x' WHERE committed_id = 3", 3),
    "serial": ("UPDATE log SET stream_serial = 9 WHERE committed_id = 3", 3),
    "surface": ("UPDATE log SET surface = 'Probe' WHERE committed_id = 3", 3),
    "kind": ("UPDATE log SET kind = '' WHERE committed_id = 3", 3),
    "entity": ("UPDATE log SET entity = entity || ' ' WHERE committed_id = 3", 3),
    "ref and actor shifted": (
        "UPDATE log SET ref = '', actor = ref || actor WHERE committed_id = 3",
        3,
    ),
    "committed_at": ("UPDATE log SET committed_at = committed_at + 1 WHERE committed_id = 3", 3),
    "body": ("UPDATE log SET body = data WHERE committed_id = 3", 3),
    "data gone": ("UPDATE log SET data = NULL WHERE committed_id = 3", 3),
    "data of nothing": ("UPDATE log SET data = body_digest WHERE committed_id = 2", 2),
    "empty data for none": (give("data, kind", 4, 2), 2),
    "body gone, data kept": ("UPDATE log SET body = NULL WHERE committed_id = 3", 3),
    "body_digest": ("UPDATE log SET body_digest = digest WHERE committed_id = 3", 3),
    "digest": ("UPDATE log SET digest = body_digest WHERE committed_id = 3", 3),
    "first entry removed": ("DELETE FROM log WHERE committed_id = 1", 1),
    "entry removed": ("DELETE FROM log WHERE committed_id = 3", 3),
    "entry removed and the rest moved up": (
        "DELETE FROM log WHERE committed_id = 3;" + move(4, 3) + move(5, 4),
        3,
    ),
    "entries swapped": (move(2, 20) + move(3, 2) + move(20, 3), 2),
    "another entry's content": (give("body, data, body_digest", 5, 2), 2),
    "end cut off": ("DELETE FROM log WHERE committed_id = 5", 5),
    "long end cut off": ("DELETE FROM log WHERE committed_id > 2", 3),
    "everything cut off": ("DELETE FROM log", 1),
    "end cut off and head moved back": (
        "DELETE FROM log WHERE committed_id = 5; UPDATE head SET committed_id = 4",
        5,
    ),
    "head moved back": ("UPDATE head SET committed_id = 4", 5),
    "head moved back to the start": ("UPDATE head SET committed_id = 0", 1),
    "head moved ahead": ("UPDATE head SET committed_id = 6", 6),
    "head's digest": (
        "UPDATE head SET digest = (SELECT digest FROM log WHERE committed_id = 2)",
        6,
    ),
    "head's date": ("UPDATE head SET committed_at = committed_at - 1", 6),
    "head row gone": ("DELETE FROM head", 1),
    "entry added at the end": (copy(5, 6, 3), 6),
    "entry added far behind": (copy(5, 900, 3), 6),
    "entry added at 0": (copy(5, 0, 3), 1),
    "entry added before all": (copy(5, -7, 3), 1),
}
"""Name to the change and the first position that is not what was committed."""


def test_every_damage_is_found_at_its_place(store_location: str) -> None:
    """Removed, moved, swapped, added, cut off, altered: exit 1, and the first bad position."""
    asyncio.run(write_log(store_location))
    code, answer = verify(store_location)
    assert (code, list(answer)) == (
        0,
        [
            *("sound", "verified", "head", "pruned", "first_bad", "problem"),
            *("rows", "tables", "unsealed", "damaged", "damage"),
        ],
    )
    tables = {"head": 1, "incarnation": 1}
    assert list(answer.values()) == [True, LAST, LAST, 0, None, None, 2, tables, 0, 0, []]

    async def restore() -> None:
        async with Editor(store_location) as editor:
            for table in ("log", "head"):
                await editor.run(f"DELETE FROM {table}")
                await editor.run(f"INSERT INTO {table} SELECT * FROM saved_{table}")

    for table in ("log", "head"):
        change(store_location, f"CREATE TABLE saved_{table} AS SELECT * FROM {table}")
    for name, (statement, first_bad) in DAMAGES.items():
        change(store_location, statement)
        code, answer = verify(store_location)
        assert (code, answer["sound"], answer["first_bad"]) == (1, False, first_bad), (name, answer)
        assert answer["verified"] == first_bad - 1, (name, answer)
        assert answer["problem"], name
        asyncio.run(restore())
    assert verify(store_location)[0] == 0


def test_a_pruned_log_verifies(store_location: str) -> None:
    """Pruning keeps both digests: the chain still verifies, and says how much is gone (L8)."""
    asyncio.run(write_log(store_location, is_pruned=True))
    code, answer = verify(store_location)
    assert code == 0
    assert (answer["sound"], answer["verified"], answer["pruned"]) == (True, LAST, 2)


async def test_a_log_of_more_streams_than_are_remembered(
    store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the number of streams, and a serial that is missing is found."""
    monkeypatch.setattr("tidelog.log.verify.REMEMBERED_STREAMS", 3)
    monkeypatch.setattr("tidelog.log.verify.PAGE_ENTRIES", 7)
    async with running_node(store_location) as node:
        for number in range(60):
            stream = f"probe/{number % 11}"
            await node.append(Draft(stream, "probe", "put", str(number), "", "", b"{}"))
        assert (await verdict(node.store)).finding is None
        async with Editor(store_location) as editor:
            # The digests are right, and so is the serial's own entry; only one before it is gone.
            await editor.run("UPDATE log SET stream_serial = 7 WHERE committed_id = 58")
        last = await verdict(node.store)
        assert last.finding is not None
        assert (last.finding.committed_id, last.finding.problem) == (
            58,
            "serial 7 of stream 'probe/2', expected 1",
        )


def test_an_empty_log_verifies(store_location: str) -> None:
    """A log without entries is sound."""

    async def create() -> None:
        async with running_node(store_location):
            pass

    asyncio.run(create())
    code, answer = verify(store_location)
    assert (code, answer["sound"], answer["verified"]) == (0, True, 0)


def test_the_command_tells_people(tmp_path: Path) -> None:
    """Without --json a line says how far the log is sound; the exit code is the process's own."""
    location = str(tmp_path / "tidelog.db")
    command = ("log", "verify", "--data-dir", str(tmp_path))
    asyncio.run(write_log(location))
    sound = run_command(*command)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert sound.stdout == (
        "sound: 5 entries verified, 0 of them pruned\nsound: 2 rows beside the log verified\n"
    )
    change(location, "UPDATE log SET body = x'00' WHERE committed_id = 4")
    damaged = run_command(*command)
    assert (damaged.returncode, damaged.stderr) == (1, "")
    assert damaged.stdout == (
        "DAMAGED at 4: the content is not what was committed. Entries 1 to 3 are sound. "
        "Restore a backup with `tidelog restore`.\n"
    )


async def write_many(location: str, count: int) -> None:
    """A log of several pages."""
    async with running_node(location) as node:
        await node.put_many([put_item("s", f"k{number}") for number in range(count)])


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a log of two pages, to be copied."""
    path = tmp_path_factory.mktemp("long") / "tidelog.db"
    asyncio.run(write_many(str(path), 1234))
    return path


@pytest.mark.parametrize("position", [1, 1000, 1001, 1234])
def test_an_entry_that_cannot_be_read_is_named(
    long_log: Path, tmp_path: Path, position: int
) -> None:
    """A text that is no longer UTF-8 makes a whole page unreadable; the entry is found anyway."""
    location = str(shutil.copy(long_log, tmp_path))
    change(
        location,
        f"UPDATE log SET entity = CAST(x'6bff' AS TEXT) WHERE committed_id = {position}",
    )
    code, answer = verify(location)
    assert code == 1
    assert (answer["first_bad"], answer["verified"]) == (position, position - 1)
    assert "unreadable" in answer["problem"]


def test_a_long_log_is_verified_page_by_page(store_location: str) -> None:
    """Damage after the first page is found at its position too."""
    asyncio.run(write_many(store_location, 2500))
    assert verify(store_location)[1]["verified"] == 2500
    change(store_location, "UPDATE log SET actor = 'x' WHERE committed_id = 2100")
    assert verify(store_location)[1]["first_bad"] == 2100


async def test_a_log_that_grows_meanwhile_is_sound(store_location: str) -> None:
    """Entries that are committed while verification runs are no damage."""
    async with running_node(store_location) as node:
        await node.put_many([put_item("s", f"k{number}") for number in range(1500)])
        seen = []
        async for progress in walk(node.store):
            seen.append(progress)
            await node.put("s", f"meanwhile {len(seen)}")
        assert len(seen) >= 3
        assert (seen[-1].finding, seen[-1].verified) == (None, 1500)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """SQLite's variable-length integer at an offset; returns it and where it ends."""
    value = 0
    for index in range(at, at + 8):
        value = value << 7 | data[index] & 0x7F
        if data[index] < 0x80:
            return value, index + 1
    return value << 8 | data[at + 8], at + 9


def cell_of(file: bytes, marker: bytes, page_bytes: int) -> range:
    """Where the row that holds `marker` lies in the file: its whole cell, lengths included."""
    assert file.count(marker) == 1
    at = file.index(marker)
    page = at - at % page_bytes
    assert file[page] == 0x0D, "a leaf page of a table"
    count = int.from_bytes(file[page + 3 : page + 5], "big")
    starts = [
        page + int.from_bytes(file[page + 8 + 2 * n : page + 10 + 2 * n], "big")
        for n in range(count)
    ]
    start = max(offset for offset in starts if offset <= at)
    payload, after_length = varint(file, start)
    _, after_row = varint(file, after_length)
    return range(start, after_row + payload)


def typed(entries: list[Entry]) -> list[list[tuple[type, object]]]:
    """Every value with its type: 1, 1.0 and True are three different things here."""
    return [[(type(value), value) for value in entry] for entry in entries]


async def read_back(path: Path) -> tuple[bool, list[Entry]]:
    """Whether damage is reported, by refusing the store or by verification, and what is read."""
    try:
        store = await open_store(SCHEMA, str(path), log_id="", node="", read_only=True)
    except StoreError:
        return True, []
    try:
        if (await verdict(store)).finding:
            return True, []
        return False, await whole_log(store)
    finally:
        await store.close()


@pytest.mark.parametrize("is_pruned", [False, True], ids=["whole", "pruned"])
async def test_no_flipped_bit_on_disk_goes_unnoticed(tmp_path: Path, is_pruned: bool) -> None:
    """In any byte of an entry's row: damage is reported, or what is read is the same."""
    path = tmp_path / "tidelog.db"
    await write_log(str(path), is_pruned=is_pruned)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")  # no stale copy of the row in the file
        [(page_bytes,)] = connection.execute("PRAGMA page_size")
    _, original = await read_back(path)
    assert len(original) == LAST
    outcomes: Counter[str] = Counter()
    with path.open("r+b", buffering=0) as file:
        cell = cell_of(file.read(), original[SAMPLE - 1].digest, page_bytes)
        assert 80 < len(cell) < 200
        for offset, turn in itertools.product(cell, range(BITS)):
            bit = (3 * offset + turn * 8 // BITS) % 8
            file.seek(offset)
            [byte] = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << bit]))
            is_reported, entries = await read_back(path)
            if not is_reported:
                assert typed(entries) == typed(original), (offset - cell.start, bit)
            outcomes["reported" if is_reported else "harmless"] += 1
            file.seek(offset)
            file.write(bytes([byte]))
    assert (await read_back(path))[1] == original
    assert outcomes["reported"] > 0.9 * outcomes.total(), outcomes
