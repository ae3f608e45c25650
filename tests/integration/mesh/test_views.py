"""The relations of the contract can be read under its names, on both engines (mesh 6.8)."""

import datetime as dt
from typing import Any

import pytest

from support.mesh.peer import Broker, envelope, fingerprint, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

COLUMNS = {
    "mesh": "id slug history_seq dedupe_retention_mode dedupe_retention_days "
    "message_retention_days clone_concurrency_policy",
    "member": "id mesh_id member_pubkey name revoked_at",
    "topic": "mesh_id name",
    "topic_subscription": "mesh_id topic member_pubkey created_at",
    "topic_message": "id mesh_id topic client_message_id sender_member_id reply_to_id priority "
    "meta body created_at",
    "message_queue": "id mesh_id destination_kind destination_ref client_message_id "
    "sender_member_id reply_to_id priority meta body created_at",
    "message_history": "mesh_id history_id broker_message_id destination_kind destination_ref "
    "created_at",
    "client_message_dedupe": "mesh_id client_message_id broker_message_id request_fingerprint "
    "sender_member_id destination_kind destination_ref first_seen_at expires_at "
    "history_available",
    "delivery_queue": "broker_message_id recipient_pubkey channel endpoint_id mesh_id history_id "
    "created_at status attempts next_attempt_at last_error claimed_at claim_id claim_expires_at "
    "delivered_at",
    "mention_index": "broker_message_id mentioned_pubkey mesh_id created_at",
    "message_tombstone": "broker_message_id mesh_id deleted_at reason",
}


@pytest.mark.parametrize("relation", COLUMNS)
async def test_a_relation_has_its_columns(broker: Broker, relation: str) -> None:
    """Every column of the contract can be selected."""
    columns = ", ".join(COLUMNS[relation].split())
    await broker.rows(f"SELECT {columns} FROM {{}} LIMIT 1", relation)


async def test_stored_sends(broker: Broker) -> None:
    """What was sent stands in the relations as it was sent, whatever characters it holds."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    client_id = 'a",\\"meta":{'
    reply_to = 'x,"meta":1,\u2028'
    meta = {"z": '\0 ,"meta":', "a": 1.0}
    fields = envelope(body="\0\u00fc", meta=meta, reply_to_id=reply_to, priority="now")
    first = (await ana.post(client_id, fields)).json()
    second = (await ana.post(unique(), envelope("dm", ben.address, body=""))).json()
    [(topic, found_id, reply, priority, found_meta, body, created)] = await broker.rows(
        "SELECT topic, client_message_id, reply_to_id, priority, meta, body, created_at "
        f"FROM {{}} WHERE id = '{first['broker_message_id']}'",
        "topic_message",
    )
    assert (topic, found_id, reply, priority) == ("alerts", client_id, reply_to, "now")
    assert found_meta == '{"a":1,"z":"\\u0000 ,\\"meta\\":"}'
    assert bytes(body) == "\0\u00fc".encode()
    assert_time(broker, created)
    [(kind, ref, meta_of_none, empty)] = await broker.rows(
        "SELECT destination_kind, destination_ref, meta, body "
        f"FROM {{}} WHERE id = '{second['broker_message_id']}'",
        "message_queue",
    )
    assert (kind, ref, meta_of_none, bytes(empty)) == ("dm", ben.address, None, b"")
    [(message_id, digest, owner, available, seen, expires)] = await broker.rows(
        "SELECT d.broker_message_id, d.request_fingerprint, m.member_pubkey, d.history_available, "
        "d.first_seen_at, d.expires_at FROM {} d JOIN {} m ON m.id = d.sender_member_id "
        f"WHERE d.broker_message_id = '{first['broker_message_id']}'",
        "client_message_dedupe",
        "member",
    )
    assert (message_id, owner) == (first["broker_message_id"], ana.address)
    assert bytes(digest).hex() == fingerprint(fields)
    assert available
    assert_time(broker, seen)
    days = 365
    if broker.database.is_sqlite:
        assert expires - seen == days * 86_400_000
    else:
        assert expires - seen == dt.timedelta(days=days)


def assert_time(broker: Broker, value: Any) -> None:
    """Milliseconds on SQLite, a time on PostgreSQL."""
    now = broker.service.clock.now_ms()
    is_sqlite = broker.database.is_sqlite
    milliseconds = value if is_sqlite else value.timestamp() * 1000
    assert abs(now - milliseconds) < 60_000


async def test_deliveries_and_mentions(broker: Broker) -> None:
    """One delivery row per recipient, one mention row per mentioned member."""
    slug = await broker.mesh()
    ana, ben, eve = [await broker.member(slug) for _ in range(3)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    fields = envelope(meta={"mentions": [eve.address]})
    posted = (await ana.post(unique(), fields)).json()
    where = f"WHERE broker_message_id = '{posted['broker_message_id']}'"
    assert await broker.rows(
        f"SELECT recipient_pubkey, history_id, status, claim_id, delivered_at FROM {{}} {where}",
        "delivery_queue",
    ) == [(ben.address, 1, "pending", None, None)]
    assert await broker.rows(f"SELECT mentioned_pubkey FROM {{}} {where}", "mention_index") == [
        (eve.address,)
    ]
