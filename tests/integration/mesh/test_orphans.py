"""Every stored relation, damaged by hand: the orphan check names the broken rule (mesh 6.7)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from support.mesh_peer import Broker, Member, envelope, running_broker, unique
from tidelog.cli.main import app
from tidelog.mesh import orphans
from tidelog.mesh.orphans import Finding, find_orphans
from tidelog.mesh.rules import DAY_MS
from tidelog.testing.clock import FakeClock


class Scene:
    """A mesh with four messages, each delivered to nobody yet and mentioning its reader."""

    def __init__(self, broker: Broker, clock: FakeClock, ana: Member, ids: list[str]) -> None:
        self.broker = broker
        self.clock = clock
        self.ana = ana
        self.ids = ids

    async def damage(self, statement: str) -> None:
        """Change the store behind the broker's back."""
        await self.broker.database.run(statement)

    async def findings(self) -> list[Finding]:
        """What the check finds."""
        store = self.broker.server.store
        return [finding async for finding in find_orphans(store, self.clock.now_ms())]

    async def rules(self) -> set[int]:
        """The broken rules."""
        return {finding.rule for finding in await self.findings()}


@pytest_asyncio.fixture
async def scene(store_location: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A broker of the test's own, eleven minutes after its sends."""
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        slug = await broker.mesh(dedupe_retention_days=7, message_retention_days=3)
        ana, ben = await broker.member(slug), await broker.member(slug)
        await ana.topic("alerts")
        await ben.subscribe("alerts")
        fields = envelope(meta={"mentions": [ben.address]})
        ids = []
        for _ in range(4):
            answer = await ana.post(unique("orphan"), fields)
            ids.append(answer.json()["broker_message_id"])
        clock.advance(11 * 60_000)
        scene = Scene(broker, clock, ana, ids)
        assert await scene.findings() == []
        yield scene


async def test_content_that_is_gone(scene: Scene) -> None:
    """The message of an id, of a place, of a delivery and of a mention is missing."""
    await scene.damage(
        "UPDATE log SET body = NULL, data = NULL WHERE stream_serial = 2 AND surface = 'mesh'"
    )
    found = await scene.findings()
    assert {finding.rule for finding in found} == {1, 4, 5, 6}
    [place] = [finding for finding in found if finding.rule == 4]
    assert (place.relation, place.key) == ("message_history", "2")
    assert {finding.mesh_id for finding in found} == {place.mesh_id}


async def test_a_place_that_is_gone(scene: Scene) -> None:
    """A whole entry is missing: its id has no place, and the history has a gap."""
    await scene.damage("DELETE FROM log WHERE stream_serial = 2 AND surface = 'mesh'")
    assert await scene.rules() == {1, 2, 5, 6, 7}
    [gap] = [finding for finding in await scene.findings() if finding.rule == 7]
    assert gap.problem == "nothing from 2 to 2"


async def test_the_last_place_is_gone(scene: Scene) -> None:
    """No gap shows it, but the id does."""
    await scene.damage("DELETE FROM log WHERE stream_serial = 4 AND surface = 'mesh'")
    assert await scene.rules() == {1, 2, 5, 6}


async def test_an_id_that_is_gone(scene: Scene) -> None:
    """A message and its delivery without an id; also when a sweep ran under a wrong clock."""
    await scene.damage("DELETE FROM dedupe WHERE scope LIKE 'mesh/%'")
    found = await scene.findings()
    assert {finding.rule for finding in found} == {3, 5}
    assert {finding.key for finding in found if finding.rule == 3} == set(scene.ids)


async def test_an_id_that_has_expired_is_no_finding(scene: Scene) -> None:
    """A message may outlive its id; a delivery that somebody waits for may not."""
    await scene.damage("UPDATE mesh_delivery_queue SET status = 'delivered'")
    await scene.damage("DELETE FROM dedupe WHERE scope LIKE 'mesh/%'")
    assert await scene.rules() == {3}
    scene.clock.advance(7 * DAY_MS)
    assert await scene.rules() == set()


async def test_an_id_of_another_message(scene: Scene) -> None:
    """An id that names another message does not stand for this one."""
    query = "SELECT client_message_id FROM {} WHERE broker_message_id = '%s'"
    keys = [
        (await scene.broker.rows(query % message, "client_message_dedupe"))[0][0]
        for message in scene.ids[:2]
    ]
    await scene.damage(
        "UPDATE dedupe SET outcome = (SELECT o.outcome FROM dedupe o WHERE o.key = "
        f"'{keys[0]}') WHERE key = '{keys[1]}'"
    )
    found = await scene.findings()
    assert {finding.rule for finding in found} == {3, 5}
    assert {finding.key for finding in found if finding.rule == 3} == {scene.ids[1]}


async def test_an_id_that_lies(scene: Scene) -> None:
    """It says that the content is gone, and it is not."""
    await scene.damage("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
    assert await scene.rules() == {1}


async def test_a_delivery_of_nothing(scene: Scene) -> None:
    """Only when it is older than the time a fan-out may take, and only while it is unfinished."""
    await scene.damage(
        f"UPDATE mesh_delivery_queue SET broker_message_id = 'x' "
        f"WHERE broker_message_id = '{scene.ids[0]}'"
    )
    assert await scene.rules() == {5}
    [finding] = await scene.findings()
    assert finding.key.startswith("x/")
    scene.clock.set(scene.clock.now_ms() - 10 * 60_000)
    assert await scene.rules() == set()


async def test_a_mention_of_nothing(scene: Scene) -> None:
    """A mention whose message there is not."""
    await scene.damage(
        f"UPDATE mesh_mention_index SET broker_message_id = 'x' "
        f"WHERE broker_message_id = '{scene.ids[0]}'"
    )
    assert await scene.rules() == {6}


async def test_a_tombstone_that_is_gone(scene: Scene) -> None:
    """Pruned messages are no findings; without their tombstones they are."""
    scene.clock.advance(4 * DAY_MS)
    await scene.broker.surface.chores._retention.tick()
    assert await scene.findings() == []
    await scene.damage("DELETE FROM mesh_message_tombstone")
    assert await scene.rules() == {1, 4, 6}


async def test_content_that_cannot_be_read(scene: Scene) -> None:
    """It is reported and does not end the check."""
    nonsense = "X'ff00'" if scene.broker.database.is_sqlite else r"'\xff00'::bytea"
    await scene.damage(
        f"UPDATE log SET body = {nonsense} WHERE stream_serial = 3 AND surface = 'mesh'"
    )
    assert await scene.rules() == {3, 5}


async def test_pages(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pages are, every row is looked at once."""
    await scene.damage("DELETE FROM dedupe WHERE scope LIKE 'mesh/%'")
    await scene.damage("UPDATE mesh_mention_index SET history_id = history_id + 100")
    columns = "broker_message_id, mesh_id, history_id, created_at, status, attempts"
    for endpoint in "abc":
        await scene.damage(
            f"INSERT INTO mesh_delivery_queue ({columns}, recipient_pubkey, channel, endpoint_id, "
            f"next_attempt_at) SELECT {columns}, '', 'webhook', '{endpoint}', 0 "
            "FROM mesh_delivery_queue WHERE channel = 'push'"
        )
    whole = await scene.findings()
    monkeypatch.setattr(orphans, "PAGE", 1)
    assert sorted(await scene.findings()) == sorted(whole)
    assert len(whole) == 4 + 4 + 4 * 4


async def test_the_counters(scene: Scene) -> None:
    """A check counts itself and its findings by rule."""
    broker = scene.broker
    await broker.surface.chores.check()
    assert broker.metric("tidelog_broker_dedupe_orphan_check_total") == 1
    assert broker.metric("tidelog_broker_dedupe_orphan_found") == 0
    await scene.damage("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
    assert await broker.surface.chores.check() == 4
    assert broker.metric("tidelog_broker_dedupe_orphan_found") == 4
    assert broker.metric("tidelog_broker_atomicity_violation_found", rule="1") == 4
    assert broker.metric("tidelog_broker_atomicity_violation_found", rule="7") == 0


async def test_the_command(scene: Scene, store_location: str) -> None:
    """`tidelog mesh check` beside a running broker: 0 when sound, 1 and the findings if not."""

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["mesh", "check", "--store", store_location, *arguments])
        return result.exit_code, result.output

    code, output = await asyncio.to_thread(run)
    assert (code, output) == (0, "sound: every row has its counterpart\n")
    await scene.damage("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
    code, output = await asyncio.to_thread(run, "--json")
    *findings, summary = map(json.loads, output.splitlines())
    assert code == 1
    assert {finding["rule"] for finding in findings} == {1}
    assert summary["findings"] == 4
