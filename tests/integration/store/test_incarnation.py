"""Every continuation of a log has a name of its own; a restore begins another one."""

import asyncio
import json
import secrets
import shutil
from pathlib import Path

import pytest

from support.log.nodes import LOG_ID, put_item, running_node
from support.store.backups import command, silent
from support.store.catalogue import Database
from tidelog.base.data.incarnation import FORMER_INCARNATIONS, Incarnation
from tidelog.base.errors import StoreDamaged
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store
from tidelog.store.backup import back_up, restore
from tidelog.testing.postgresql import create_database


async def incarnations(location: str) -> list[Incarnation]:
    """What a reader of the store finds."""
    store = await open_store(SCHEMA, location, log_id="", node="", read_only=True)
    try:
        found = await store.incarnations()
        assert (await store.head()).incarnation == found[-1].id
        return found
    finally:
        await store.close()


async def write(location: str, count: int) -> list[Incarnation]:
    """Serve the store for a moment, and append; returns what the committer knew."""
    async with running_node(location) as node:
        await node.put_many([put_item("s", f"{count}/{n}") for n in range(count)])
        known = node.committer.incarnations
        return [*known.former, known.current]


async def new_place(engine: str, tmp_path: Path, postgresql_server: str) -> str:
    """Somewhere to restore to."""
    if engine == "postgresql":
        return await create_database(postgresql_server)
    return str(tmp_path / secrets.token_hex(4) / "tidelog.db")


async def test_a_new_log_has_one_and_keeps_it(store_location: str) -> None:
    """From position 0 on, across starts."""
    [first] = await write(store_location, 3)
    assert (first.began, first.number, len(first.id)) == (0, 1, 32)
    assert first.at > 0
    assert await write(store_location, 2) == [first]
    assert await incarnations(store_location) == [first]


async def test_two_logs_have_different_ones(store_location: str, tmp_path: Path) -> None:
    """Also when they were made at the same time."""
    [one] = await write(store_location, 1)
    [other] = await write(str(tmp_path / "other" / "tidelog.db"), 1)
    assert one.id != other.id


@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
async def test_a_restore_begins_another_at_the_restored_head(
    store_location: str, target: str, tmp_path: Path, postgresql_server: str
) -> None:
    """From either engine to either; each restore of one backup another, and the log goes on."""
    await write(store_location, 3)
    file = tmp_path / "backup.db"
    await back_up(SCHEMA, store_location, file, silent)
    [first] = await write(store_location, 5)
    assert await incarnations(str(file)) == [first], "to a reader a backup is the log it is of"
    places = [await new_place(target, tmp_path, postgresql_server) for _ in range(2)]
    seconds = set()
    for place in places:
        await restore(SCHEMA, file, place, silent)
        [kept, second] = await incarnations(place)
        assert (kept, second.began, second.number) == (first, 3, 2)
        assert await write(place, 7) == [first, second]
        seconds.add(second.id)
    assert len(seconds | {first.id}) == 3
    again = tmp_path / "again.db"
    await back_up(SCHEMA, places[0], again, silent)
    last = await new_place(target, tmp_path, postgresql_server)
    await restore(SCHEMA, again, last, silent)
    assert [each.began for each in await incarnations(last)] == [0, 3, 10]


async def test_a_backup_that_is_served_in_place_is_another_incarnation(
    store_location: str, tmp_path: Path
) -> None:
    """The log itself goes on, and so does whoever serves a copy of it: they are two."""
    await write(store_location, 3)
    file = tmp_path / "backup.db"
    await back_up(SCHEMA, store_location, file, silent)
    [first] = await incarnations(store_location)
    copy = tmp_path / "copied" / "tidelog.db"
    copy.parent.mkdir()
    shutil.copy(file, copy)
    [kept, second] = await write(str(copy), 2)
    assert (kept, second.began) == (first, 3)
    assert await write(str(copy), 1) == [first, second], "named once"
    await write(str(file), 1)
    assert (await incarnations(str(file)))[1].id not in (first.id, second.id)


async def test_a_backup_of_a_backup_is_still_one_step(store_location: str, tmp_path: Path) -> None:
    """What was never served adds nothing."""
    await write(store_location, 3)
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    await back_up(SCHEMA, store_location, one, silent)
    await back_up(SCHEMA, str(one), two, silent)
    place = str(tmp_path / "restored" / "tidelog.db")
    await restore(SCHEMA, two, place, silent)
    assert [each.began for each in await incarnations(place)] == [0, 3]


async def test_sixteen_former_ones_are_kept(
    engine: str, tmp_path: Path, postgresql_server: str
) -> None:
    """Those before are forgotten, and the numbers go on."""
    place = str(tmp_path / "start" / "tidelog.db")
    await write(place, 1)
    rounds = FORMER_INCARNATIONS + 2
    for number in range(rounds):
        file = tmp_path / f"backup-{number}.db"
        await back_up(SCHEMA, place, file, silent)
        is_last = number == rounds - 1
        place = await new_place(engine if is_last else "sqlite", tmp_path, postgresql_server)
        await restore(SCHEMA, file, place, silent)
    kept = await incarnations(place)
    assert [each.number for each in kept] == list(range(3, rounds + 2))
    assert len(kept) == FORMER_INCARNATIONS + 1


async def test_a_started_but_empty_database_can_be_restored_to(
    postgresql_server: str, tmp_path: Path
) -> None:
    """A start leaves a head and an incarnation; the backup's take their place."""
    source = str(tmp_path / "source" / "tidelog.db")
    [first] = await write(source, 3)
    file = tmp_path / "backup.db"
    await back_up(SCHEMA, source, file, silent)
    place = await create_database(postgresql_server)
    await write(place, 0)
    await restore(SCHEMA, file, place, silent)
    assert [(each.began, each.number) for each in await incarnations(place)] == [(0, 1), (3, 2)]
    assert (await incarnations(place))[0] == first


async def test_a_log_of_an_earlier_version_gets_its_first(
    engine: str, postgresql_server: str, tmp_path: Path
) -> None:
    """Number 1, from position 0, whatever its head: an upgrade resets nobody."""
    old = Database(await new_place(engine, tmp_path, postgresql_server))
    await old.at_version(SCHEMA.migrations(engine)[:6])
    await old.fill()
    assert await old.run("SELECT committed_id FROM head") == [(7,)]
    store = await open_store(SCHEMA, old.location, log_id="L", node="n")
    await store.close()
    [first] = await incarnations(old.location)
    assert (first.began, first.number, len(first.id)) == (0, 1, 32)
    assert first.at > 1_700_000_000_000


async def test_a_log_that_lost_its_incarnations_is_damaged(store_location: str) -> None:
    """It must not begin a first one again, which would be taken for the one that was there."""
    await write(store_location, 1)
    await Database(store_location).run("DELETE FROM incarnation")
    with pytest.raises(StoreDamaged, match="incarnation is missing"):
        await open_store(SCHEMA, store_location, log_id="L", node="n")


def test_stats_name_the_current_one(store_location: str) -> None:
    """`tidelog log stats` says which incarnation it counted."""
    [first] = asyncio.run(write(store_location, 3))
    stats = command("log", "stats", "--store", store_location)
    assert stats["log_id"] == LOG_ID
    assert stats["incarnation"] == json.loads(json.dumps(first._asdict()))
