"""Every stored relation, damaged by hand: the orphan check names the broken rule (mesh 6.5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from support.cli.inside import invoked
from support.mesh.peer import Broker, Member, envelope, running_broker, unique
from tidelog.mesh.protocol.model import DAY_MS
from tidelog.mesh.upkeep import orphan_check
from tidelog.mesh.upkeep.orphan_check import RULES, Finding, find_orphans
from tidelog.testing.clock import FakeClock


class Scene:
    """A mesh with four messages, each delivered to nobody yet and mentioning its reader."""

    def __init__(self, broker: Broker, clock: FakeClock, sender: Member, reader: Member) -> None:
        self.broker = broker
        self.clock = clock
        self.sender = sender
        self.reader = reader
        self.ids: list[str] = []
        """`broker_message_id` of each message."""
        self.keys: list[str] = []
        """`client_message_id` of each message."""

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
        scene = Scene(broker, clock, ana, ben)
        for _ in range(4):
            scene.keys.append(unique("orphan"))
            answer = await ana.post(scene.keys[-1], fields)
            scene.ids.append(answer.json()["broker_message_id"])
        clock.advance(11 * 60_000)
        assert await scene.findings() == []
        yield scene


class Damage(NamedTuple):
    """What is done to the second message behind the broker's back, and what must be reported."""

    statements: tuple[str, ...]
    """`{key}` and `{id}` stand for its `client_message_id` and `broker_message_id`."""
    broken: tuple[tuple[int, str, str], ...]
    """Rule, relation and row; `{reader}` stands for who was to get it."""


KEY = (1, "client_message_dedupe", "{key}")
NO_PLACE = (2, "client_message_dedupe", "{key}")
MESSAGE = (3, "message", "{id}")
PLACE = (4, "message_history", "2")
DELIVERY = (5, "delivery_queue", "{id}/{reader}/push")
MENTION = (6, "mention_index", "{id}/{reader}")
GAP = (7, "message_history", "3")
FAN_OUT = (8, "delivery_queue", "{id}")
UNLISTED = (9, "mention_index", "{id}/{reader}")

DAMAGES = {
    "dedupe: a row is gone": Damage(
        ("DELETE FROM dedupe WHERE key = '{key}'",), (MESSAGE, DELIVERY)
    ),
    "dedupe: it says that the message is gone": Damage(
        ("UPDATE dedupe SET available = 0 WHERE key = '{key}'",), (KEY,)
    ),
    "dedupe: its answer cannot be read": Damage(
        ("UPDATE dedupe SET outcome = {nonsense} WHERE key = '{key}'",), (KEY, MESSAGE, DELIVERY)
    ),
    "log: an entry is gone": Damage(
        ("DELETE FROM log WHERE entity = '{id}'",), (KEY, NO_PLACE, DELIVERY, MENTION, GAP)
    ),
    "log: the content of an entry is gone": Damage(
        ("UPDATE log SET body = NULL, data = NULL WHERE entity = '{id}'",),
        (KEY, PLACE, DELIVERY, MENTION),
    ),
    "log: an entry is there twice": Damage(
        (
            "DROP INDEX log_stream_serial",
            (
                "INSERT INTO log SELECT committed_id + 1000, stream, stream_serial, surface, kind, "
                "entity, ref, actor, committed_at, body, data, body_digest, digest FROM log "
                "WHERE entity = '{id}'"
            ),
        ),
        ((7, "message_history", "2"),),
    ),
    "delivery: of a message that there is not": Damage(
        (
            (
                "UPDATE mesh_delivery_queue SET broker_message_id = 'x{id}' "
                "WHERE broker_message_id = '{id}'"
            ),
        ),
        ((5, "delivery_queue", "x{id}/{reader}/push"), FAN_OUT),
    ),
    "delivery: a row is gone": Damage(
        ("DELETE FROM mesh_delivery_queue WHERE broker_message_id = '{id}'",), (FAN_OUT,)
    ),
    "delivery: a row too many": Damage(
        (
            (
                "INSERT INTO mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, "
                "endpoint_id, mesh_id, history_id, created_at, status, attempts, next_attempt_at) "
                "SELECT broker_message_id, 'stranger', channel, endpoint_id, mesh_id, history_id, "
                "created_at, status, attempts, next_attempt_at FROM mesh_delivery_queue "
                "WHERE broker_message_id = '{id}'"
            ),
        ),
        (FAN_OUT,),
    ),
    "mention: of a message that there is not": Damage(
        (
            (
                "UPDATE mesh_mention_index SET broker_message_id = 'x{id}' "
                "WHERE broker_message_id = '{id}'"
            ),
        ),
        ((6, "mention_index", "x{id}/{reader}"), UNLISTED),
    ),
    "mention: a row is gone": Damage(
        ("DELETE FROM mesh_mention_index WHERE broker_message_id = '{id}'",), (UNLISTED,)
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_row_is_named(scene: Scene, name: str) -> None:
    """Every broken rule with the one row that breaks it, and nothing about the other rows."""
    names = {
        "key": scene.keys[1],
        "id": scene.ids[1],
        "reader": scene.reader.address,
        "nonsense": "X'ff00'" if scene.broker.database.is_sqlite else r"'\xff00'::bytea",
    }
    for statement in DAMAGES[name].statements:
        await scene.damage(statement.format(**names))
    found = [(finding.rule, finding.relation, finding.key) for finding in await scene.findings()]
    expected = [(rule, at, row.format(**names)) for rule, at, row in DAMAGES[name].broken]
    assert sorted(found) == sorted(expected)


async def test_a_lost_tombstone_is_named(scene: Scene) -> None:
    """Of a message that retention emptied: its id, its place and its mention have no excuse."""
    scene.clock.advance(4 * DAY_MS)
    await scene.broker.owner.periodic._retention.tick()
    assert await scene.findings() == []
    await scene.damage(
        f"DELETE FROM mesh_message_tombstone WHERE broker_message_id = '{scene.ids[1]}'"
    )
    found = {(finding.rule, finding.relation, finding.key) for finding in await scene.findings()}
    assert found == {
        (1, "client_message_dedupe", scene.keys[1]),
        (4, "message_history", "2"),
        (6, "mention_index", f"{scene.ids[1]}/{scene.reader.address}"),
    }


def test_every_rule_is_broken_by_some_damage() -> None:
    """No rule is there that nothing can break."""
    broken = {rule for damage in DAMAGES.values() for rule, _, _ in damage.broken}
    assert broken == set(RULES)


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
    assert {finding.rule for finding in found} == {1, 3, 5}
    assert {finding.key for finding in found if finding.rule == 1} == {keys[1]}
    assert {finding.key for finding in found if finding.rule == 3} == {scene.ids[1]}


async def test_a_delivery_of_nothing(scene: Scene) -> None:
    """Only when it is older than the time a fan-out may take, and only while it is unfinished."""
    await scene.damage(
        f"UPDATE mesh_delivery_queue SET broker_message_id = 'x' "
        f"WHERE broker_message_id = '{scene.ids[0]}'"
    )
    assert await scene.rules() == {5, 8}
    assert (await scene.findings())[-1].key.startswith("x/")
    scene.clock.set(scene.clock.now_ms() - 10 * 60_000)
    assert await scene.rules() == {8}


async def send(scene: Scene, kind: str, ref: str) -> str:
    """Send another message, which mentions the reader; returns its `broker_message_id`."""
    fields = envelope(kind, ref, meta={"mentions": [scene.reader.address]})
    answer = await scene.sender.post(unique("orphan"), fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["broker_message_id"])


@pytest.mark.parametrize("kind", ["dm", "queue"])
async def test_a_lost_row_of_a_direct_or_queue_send(scene: Scene, kind: str) -> None:
    """The entry names its recipient and its mentions: rows without them are missed (issue 14)."""
    ref = scene.reader.address if kind == "dm" else "thumbs"
    recipient = ref if kind == "dm" else "queue:thumbs"
    await scene.sender.request("POST", "/queues", {"queue": "thumbs"})
    message = await send(scene, kind, ref)
    assert await scene.findings() == []
    await scene.damage(f"DELETE FROM mesh_delivery_queue WHERE broker_message_id = '{message}'")
    [lost] = await scene.findings()
    assert (lost.rule, lost.relation, lost.key) == (
        8,
        "delivery_queue",
        f"{message}/{recipient}/push",
    )
    await scene.damage(f"DELETE FROM mesh_mention_index WHERE broker_message_id = '{message}'")
    found = {(finding.rule, finding.relation, finding.key) for finding in await scene.findings()}
    assert found == {
        (8, "delivery_queue", f"{message}/{recipient}/push"),
        (9, "mention_index", f"{message}/{scene.reader.address}"),
    }


async def test_a_lost_row_of_a_webhook(scene: Scene) -> None:
    """How many endpoints a message goes to is in its entry as well."""
    webhook = {"url": "http://127.0.0.1:9/", "secret": "s" * 16}
    await scene.broker.admin("POST", f"/mesh/{scene.sender.slug}/webhooks", webhook)
    message = await send(scene, "dm", scene.reader.address)
    assert await scene.findings() == []
    await scene.damage("DELETE FROM mesh_delivery_queue WHERE channel = 'webhook'")
    [lost] = await scene.findings()
    assert (lost.rule, lost.key) == (8, message)


async def test_rows_that_were_swept_are_no_finding(scene: Scene) -> None:
    """A finished delivery goes after 30 days; its mention stays, and is missed."""
    await scene.damage("UPDATE mesh_delivery_queue SET status = 'delivered'")
    await scene.damage("UPDATE mesh_setting SET message_retention_days = NULL")
    scene.clock.advance(30 * DAY_MS + 1)
    await scene.broker.owner.periodic._retention.tick()
    assert await scene.broker.rows("SELECT 1 FROM {}", "delivery_queue") == []
    assert await scene.findings() == []
    await scene.damage(f"DELETE FROM mesh_mention_index WHERE broker_message_id = '{scene.ids[1]}'")
    assert await scene.rules() == {9}


async def test_entries_of_before_are_not_judged_by_what_they_do_not_say(scene: Scene) -> None:
    """An entry of an earlier version has no number of recipients: its topic's rows go unmissed."""
    message = scene.ids[1]
    [(body,)] = await scene.broker.database.run(f"SELECT body FROM log WHERE entity = '{message}'")
    fields = json.loads(bytes(body))
    assert fields.pop("recipients") == 1
    earlier = json.dumps(fields).encode().hex()
    literal = f"X'{earlier}'" if scene.broker.database.is_sqlite else rf"'\x{earlier}'::bytea"
    await scene.damage(f"UPDATE log SET body = {literal} WHERE entity = '{message}'")
    await scene.damage(f"DELETE FROM mesh_delivery_queue WHERE broker_message_id = '{message}'")
    assert await scene.findings() == []


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
    monkeypatch.setattr(orphan_check, "PAGE", 1)
    assert sorted(await scene.findings()) == sorted(whole)
    assert len(whole) == 4 + 4 + 4 * 4


async def test_the_counters(scene: Scene) -> None:
    """A check counts itself and its findings by rule."""
    broker = scene.broker
    await broker.owner.periodic.check()
    assert broker.metric("tidelog_broker_dedupe_orphan_check_total") == 1
    assert broker.metric("tidelog_broker_dedupe_orphan_found") == 0
    await scene.damage("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
    assert await broker.owner.periodic.check() == 4
    assert broker.metric("tidelog_broker_dedupe_orphan_found") == 4
    assert broker.metric("tidelog_broker_atomicity_violation_found", rule="1") == 4
    assert broker.metric("tidelog_broker_atomicity_violation_found", rule="7") == 0


async def test_the_command(scene: Scene, store_location: str) -> None:
    """`tidelog mesh check` beside a running broker: 0 when sound, 1 and the findings if not."""

    def run(*arguments: str) -> tuple[int, str]:
        result = invoked(["mesh", "check", "--store", store_location, *arguments])
        return result.exit_code, result.output

    code, output = await asyncio.to_thread(run)
    assert (code, output) == (0, "sound: every row has its counterpart\n")
    await scene.damage("UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'")
    code, output = await asyncio.to_thread(run, "--json")
    *findings, summary = map(json.loads, output.splitlines())
    assert code == 1
    assert {finding["rule"] for finding in findings} == {1}
    assert summary["findings"] == 4
