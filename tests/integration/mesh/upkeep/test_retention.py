"""Messages and ids whose time is over, and what a retry is told about them (mesh 6.4)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio

from support.mesh.peer import Broker, Member, envelope, running_broker, unique
from tidelog.mesh.protocol.model import DAY_MS
from tidelog.mesh.upkeep.retention import FINISHED_MS, Retention
from tidelog.store.rows import Row
from tidelog.testing.clock import FakeClock


class Scene:
    """A broker whose clock stands still."""

    def __init__(self, broker: Broker, clock: FakeClock) -> None:
        self.broker = broker
        self.clock = clock

    @property
    def retention(self) -> Retention:
        """What is tested."""
        return self.broker.owner.periodic._retention

    async def members(self, **settings: Any) -> tuple[Member, Member]:
        """Two members of a new mesh, both in the topic `alerts`."""
        slug = await self.broker.mesh(**settings)
        ana, ben = await self.broker.member(slug), await self.broker.member(slug)
        await ana.topic("alerts")
        await ben.subscribe("alerts")
        return ana, ben

    async def findings(self) -> int:
        """What the orphan check finds."""
        return await self.broker.owner.periodic.check()

    async def column(self, name: str, relation: str) -> list[Any]:
        """All values of one column."""
        return [value for (value,) in await self.broker.rows(f"SELECT {name} FROM {{}}", relation)]


@pytest_asyncio.fixture
async def scene(store_location: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A broker of the test's own."""
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        yield Scene(broker, clock)


async def test_a_message_goes_and_its_id_says_so(scene: Scene) -> None:
    """Tombstone, emptied body, dead delivery; a retry gets 200 without the history."""
    ana, ben = await scene.members(message_retention_days=1)
    client_id, fields = unique(), envelope(meta={"mentions": [ben.address]})
    first = (await ana.post(client_id, fields)).json()
    scene.clock.advance(DAY_MS)
    assert await scene.retention.tick() == (0, 0)
    scene.clock.advance(1)
    kept = (await ana.post(unique(), envelope())).json()
    assert await scene.retention.tick() == (1, 0)
    again = await ana.post(client_id, fields)
    assert again.status_code == 200
    assert again.json() | {"history_available": False, "history_id": None} == again.json()
    assert again.json()["broker_message_id"] == first["broker_message_id"]
    assert await scene.column("broker_message_id", "message_tombstone") == [
        first["broker_message_id"]
    ]
    assert await scene.broker.rows(
        "SELECT status, last_error FROM {} WHERE history_id = 1", "delivery_queue"
    ) == [("dead", "retention_expired")]
    history = (await ana.request("GET", "/history")).json()["items"]
    assert [item["broker_message_id"] for item in history] == [kept["broker_message_id"]]
    async with ben.connected() as wire:
        assert (await wire.until("deliver"))["history_id"] == 2
    assert await scene.findings() == 0


async def test_what_is_gone_is_not_looked_through_after_a_restart(
    store_location: str, tmp_path: Path
) -> None:
    """The place it has come to is stored with what it removed."""
    clock = FakeClock()
    async with running_broker(tmp_path, store_location, clock) as broker:
        scene = Scene(broker, clock)
        ana, _ = await scene.members(message_retention_days=1)
        for _ in range(3):
            await ana.post(unique(), envelope())
        clock.advance(DAY_MS + 1)
        assert await scene.retention.tick() == (3, 0)
        await ana.post(unique(), envelope())
    async with running_broker(tmp_path, store_location, clock) as broker:
        scene, store = Scene(broker, clock), broker.server.store
        asked: list[int] = []
        rows = store.rows

        async def note(query: str, key: tuple[Any, ...]) -> tuple[Row, ...]:
            if query == "mesh_too_old":
                asked.append(key[1])
            return await rows(query, key)

        with patch.object(store, "rows", note):
            clock.advance(DAY_MS + 1)
            await Retention(broker.server.committer, store, clock).tick()
        assert len(await scene.column("broker_message_id", "message_tombstone")) == 4
        assert min(asked) >= 3, asked


async def test_an_expired_id_counts_while_it_is_there(scene: Scene) -> None:
    """Only its absence makes an id new again, and the sweep is what removes it."""
    ana, _ = await scene.members(dedupe_retention_days=7, message_retention_days=7)
    client_id = unique()
    first = (await ana.post(client_id, envelope())).json()
    scene.clock.advance(8 * DAY_MS)
    present = await ana.post(client_id, envelope())
    assert (present.status_code, present.json()["history_available"]) == (200, True)
    assert await scene.retention.tick() == (1, 1)
    anew = await ana.post(client_id, envelope())
    assert anew.status_code == 201
    assert anew.json()["broker_message_id"] != first["broker_message_id"]
    assert await scene.findings() == 0


async def test_an_id_stays_while_somebody_waits(scene: Scene) -> None:
    """The sweep skips ids whose message has an unfinished delivery."""
    ana, ben = await scene.members(dedupe_retention_days=7)
    await ana.post(unique(), envelope("dm", ben.address))
    scene.clock.advance(8 * DAY_MS)
    assert await scene.retention.tick() == (0, 0)
    async with ben.connected() as wire:
        delivered = await wire.until("deliver")
        await wire.send(
            {"type": "client_ack", **{k: delivered[k] for k in ("broker_message_id", "claim_id")}}
        )
        while await scene.column("status", "delivery_queue") != ["delivered"]:
            await wire.ask("topics")
    assert await scene.retention.tick() == (0, 1)
    assert await scene.findings() == 0


async def test_permanent_ids_never_go(scene: Scene) -> None:
    """However old they are."""
    ana, _ = await scene.members(dedupe_retention_mode="permanent")
    client_id = unique()
    await ana.post(client_id, envelope())
    scene.clock.advance(5000 * DAY_MS)
    assert await scene.retention.tick() == (0, 0)
    assert (await ana.post(client_id, envelope())).status_code == 200


async def test_a_younger_message_under_the_same_id_is_left_alone(scene: Scene) -> None:
    """Messages kept longer than ids are complained about; pruning the old one spares the new."""
    ana, _ = await scene.members(dedupe_retention_days=7, message_retention_days=9)
    await ana.request("POST", "/topics", {"topic": "quiet"})
    await ana.subscribe("quiet")
    client_id, fields = unique(), envelope("topic", "quiet")
    mesh = await scene.broker.service.mesh(ana.slug)
    assert mesh is not None
    await ana.post(client_id, fields)
    scene.clock.advance(8 * DAY_MS)
    assert await scene.retention.tick() == (0, 1)
    assert (await ana.post(client_id, fields)).status_code == 201
    scene.clock.advance(2 * DAY_MS)
    assert await scene.retention.tick() == (1, 0)
    again = await ana.post(client_id, fields)
    assert (again.status_code, again.json()["history_available"]) == (200, True)
    assert await scene.findings() == 0
    name = "tidelog_broker_dedupe_misconfig_total"
    assert scene.broker.metric(name, mesh_id=mesh.id) == 1


async def test_deliveries_to_a_removed_endpoint_end(scene: Scene) -> None:
    """A row that a send wrote for an endpoint of yesterday does not keep its id for ever."""
    ana, _ = await scene.members()
    hook = {"url": "http://192.0.2.1/"}
    created = await scene.broker.admin("POST", f"/mesh/{ana.slug}/webhooks", hook)
    await ana.post(unique(), envelope())
    table = "mesh_webhook"
    await scene.broker.database.run(f"DELETE FROM {table} WHERE id = '{created.json()['id']}'")
    await scene.retention.tick()
    query = "SELECT status FROM {} WHERE channel = 'webhook'"
    assert await scene.broker.rows(query, "delivery_queue") == [("dead",)]


async def test_a_sweep_against_retries(scene: Scene) -> None:
    """FT-24: retries beside both sweeps get 200 or 201, and never a history without a body."""
    ana, _ = await scene.members(dedupe_retention_days=7, message_retention_days=7)
    ids = [unique() for _ in range(30)]
    fields = envelope()
    for client_id in ids:
        await ana.post(client_id, fields)
    scene.clock.advance(8 * DAY_MS)

    async def retry(client_id: str) -> list[Any]:
        found = []
        for _ in range(6):
            found.append(await ana.post(client_id, fields))
            await asyncio.sleep(0)
        return found

    retries = [asyncio.create_task(retry(client_id)) for client_id in ids]
    swept = [0, 0]
    while not all(task.done() for task in retries):
        messages, keys = await scene.retention.tick()
        swept = [swept[0] + messages, swept[1] + keys]
        await asyncio.sleep(0.01)
    assert swept == [30, 30]
    for answers in await asyncio.gather(*retries):
        assert {answer.status_code for answer in answers} <= {200, 201}
        for answer in answers:
            body = answer.json()
            if answer.status_code == 200:
                assert body["history_available"] is (body["history_id"] is not None)
    assert await scene.findings() == 0


async def test_a_sweep_between_the_fast_path_and_the_decision(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-24 b: a retry that missed the fast path is judged by what its decision finds."""
    ana, _ = await scene.members(dedupe_retention_days=7, message_retention_days=7)
    client_id = unique()
    first = (await ana.post(client_id, envelope())).json()
    scene.clock.advance(8 * DAY_MS)

    async def missed(sends: object) -> dict[tuple[str, str], Any]:
        del sends
        return {}

    monkeypatch.setattr(scene.broker.service._sends, "_known", missed)
    present = await ana.post(client_id, envelope())
    assert (present.status_code, present.json()["history_available"]) == (200, True)
    assert present.json()["broker_message_id"] == first["broker_message_id"]
    await scene.retention.tick()
    assert (await ana.post(client_id, envelope())).status_code == 201
    assert await scene.findings() == 0


async def test_no_other_sweep_takes_an_id(scene: Scene) -> None:
    """What another surface finds expired does not include the ids of meshes."""
    ana, _ = await scene.members(dedupe_retention_days=7)
    await ana.post(unique(), envelope())
    scene.clock.advance(8 * DAY_MS)
    store = scene.broker.server.store
    assert await store.rows("channels_expired_keys", (scene.clock.now_ms(), 10)) == ()


async def test_everything_ends_with_the_server(store_location: str, tmp_path: Path) -> None:
    """No periodic work goes on that would read a closed store."""
    async with running_broker(tmp_path, store_location) as broker:
        await broker.mesh()
    await asyncio.sleep(0.05)
    left = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in left if name.startswith("tidelog-")]


async def test_rows_of_finished_deliveries_go(scene: Scene) -> None:
    """After thirty days, on both engines, page by page; what somebody waits for stays."""
    ana, ben = await scene.members()
    async with ben.connected() as wire:
        for number in range(3):
            await ana.post(f"got-{number}", envelope())
            frame = await wire.until("deliver", client_message_id=f"got-{number}")
            names = ("broker_message_id", "client_message_id", "claim_id")
            await wire.send({"type": "client_ack", **{name: frame[name] for name in names}})
        async with asyncio.timeout(60):
            while await scene.column("status", "delivery_queue") != ["delivered"] * 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await ana.post("waiting", envelope())
    scene.clock.advance(FINISHED_MS)
    await ana.post("young", envelope())
    await scene.retention.tick()
    assert len(await scene.column("status", "delivery_queue")) == 5
    scene.clock.advance(1)
    with patch("tidelog.mesh.upkeep.retention.SWEEP_ROWS", 2):
        await scene.retention.tick()
    assert await scene.column("status", "delivery_queue") == ["pending"] * 2
    assert await scene.findings() == 0
    assert (await ana.post("got-1", envelope())).json()["duplicate"] is True
