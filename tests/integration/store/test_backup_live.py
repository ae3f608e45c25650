"""`tidelog backup` beside a server that is being written to, and life after `tidelog restore`.

Everything is a process of its own: the server, the commands, and the server that goes on elsewhere.
"""

import asyncio
from contextlib import closing
from pathlib import Path

from support.cli.command import tidelog
from support.log.nodes import Witness
from tidelog.client import ChannelPublisher, Receipt
from tidelog.config.schema import SCHEMA
from tidelog.store.catalogue import tables
from tidelog.testing.postgresql import create_database, drop_database
from tidelog.testing.process import CREDENTIALS, ServerProcess

CHANNELS = ("room-1", "room-2", "room-3")
WRITERS = 6
BEFORE = 60
"""Acknowledged publishes before the backup begins."""
SECONDS = 60.0
"""Bound of each wait; all of it takes a few seconds on a machine with nothing else to do."""
VERSIONED = {"TIDELOG_CHANNELS_VERSIONED_MESSAGES_ENABLED": "true", "TIDELOG_TEST_PROBE": "0"}


class Traffic:
    """Writers that publish and append under their own keys until they are told to stop."""

    def __init__(self, url: str) -> None:
        self.acknowledged: dict[str, Receipt] = {}
        """Each publish that was answered, by its `message_id`."""
        self._url = url
        self._is_over = False
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]

    async def _write(self, writer: int) -> None:
        async with publisher(self._url) as app:
            number = 0
            while not self._is_over:
                key = f"{writer}-{number}"
                receipt = await publish(app, key)
                self.acknowledged[key] = receipt
                assert receipt.message_serial is not None
                await app.append(receipt.channel, receipt.message_serial, " and more", op_id=key)
                number += 1

    async def reach(self, count: int) -> None:
        """Wait until so many publishes are acknowledged."""
        async with asyncio.timeout(SECONDS):
            while len(self.acknowledged) < count:
                failed = [task for task in self._tasks if task.done()]
                assert not failed, failed
                await asyncio.sleep(0.01)

    async def finish(self) -> None:
        """Let every writer have its last answer."""
        self._is_over = True
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._tasks)


def publisher(url: str) -> ChannelPublisher:
    """The app every server of these tests has."""
    return ChannelPublisher(
        url,
        CREDENTIALS["TIDELOG_APP_ID"],
        CREDENTIALS["TIDELOG_APP_KEY"],
        CREDENTIALS["TIDELOG_APP_SECRET"],
    )


async def publish(app: ChannelPublisher, key: str) -> Receipt:
    """The one publish that belongs to a key, so that repeating it is a retry."""
    channel = CHANNELS[int(key.partition("-")[0]) % len(CHANNELS)]
    return await app.publish(channel, "said", {"by": key}, message_id=key)


def rows(location: str, table: str, where: str = "") -> list[str]:
    """The rows of a table in an order that no engine chooses."""
    with closing(Witness(location)) as witness:
        return sorted(map(repr, witness.rows(f"SELECT * FROM {table} {where}")))


async def test_a_backup_of_a_served_log_goes_on_elsewhere(
    store_location: str, tmp_path: Path, postgresql_server: str
) -> None:
    """Equal up to the backup's position and sound, on both engines; there the log goes on."""
    backup = tmp_path / "backup.db"
    with ServerProcess(
        data_dir=tmp_path / "first", store=store_location, environment=VERSIONED
    ) as server:
        await asyncio.to_thread(server.start)
        traffic = Traffic(server.url)
        await traffic.reach(BEFORE)
        before = dict(traffic.acknowledged)
        position = (await tidelog("backup", str(backup), "--store", store_location))["head"]
        during = len(traffic.acknowledged)
        await traffic.reach(during + WRITERS)
        await traffic.finish()
        assert during > len(before), "nobody wrote while the backup was made"

        upto = f"WHERE committed_id <= {position}"
        for table in ("log", "dedupe"):
            assert rows(str(backup), table) == rows(store_location, table, upto)
        assert len(rows(str(backup), "log")) == position
        assert len(rows(store_location, "log")) > position
        assert await asyncio.to_thread(server.terminate) == 0

    database = await create_database(postgresql_server)
    try:
        for location in (str(tmp_path / "elsewhere" / "tidelog.db"), database):
            restored = await tidelog("restore", str(backup), "--store", location)
            assert restored["head"] == position
            for table in tables(SCHEMA):
                if table != "incarnation":  # a restore begins one of its own
                    assert rows(location, table) == rows(str(backup), table), table
            await goes_on(tmp_path / "second", location, position, before)
    finally:
        await drop_database(database)


async def goes_on(data_dir: Path, location: str, position: int, before: dict[str, Receipt]) -> None:
    """A server on the restored store knows what was acknowledged and continues behind it."""
    with ServerProcess(data_dir=data_dir, store=location, environment=VERSIONED) as server:
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(SECONDS), publisher(server.url) as app:
            for key in list(before)[:: len(before) // 10]:
                assert await publish(app, key) == before[key]
            with closing(Witness(location)) as witness:
                assert witness.end() == (position, position), "a retry wrote an entry"
                assert (await publish(app, "7-new")).channel == CHANNELS[1]
                assert witness.end() == (position + 1, position + 1)
        assert await asyncio.to_thread(server.terminate) == 0
    verdict = await tidelog("log", "verify", "--store", location)
    assert (verdict["sound"], verdict["verified"]) == (True, position + 1)
