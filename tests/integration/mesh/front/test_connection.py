"""A daemon's connection: proof, negotiation, traffic, and every way it ends (mesh 9.1 to 9.3)."""

import asyncio
import json
from pathlib import Path

import pytest

from support.mesh.peer import Broker, Member, Wire, envelope, fingerprint, running_broker, unique
from tidelog.daemon.key_file import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def pair(broker: Broker, **settings: str) -> tuple[Member, Member]:
    """Two members of a new mesh."""
    slug = await broker.mesh(**settings)
    return await broker.member(slug, "ana"), await broker.member(slug, "ben")


async def test_hello_and_negotiation(broker: Broker) -> None:
    """The broker greets with a challenge, welcomes the member and tells what it supports."""
    ana, _ = await pair(broker)
    async with Wire.open(ana) as wire:
        hello = await wire.greeting()
        assert len(wire.challenge) == 32
        assert hello["server_time"].endswith("Z")
        welcome = await wire.hello()
        assert (welcome["name"], welcome["history_seq"]) == ("ana", 0)
        response = await wire.negotiate("client_message_id_dedupe")
        assert response["missing_required"] == []
        assert response["supported"] == {
            "client_message_id_dedupe": {
                "params": {
                    "version": 2,
                    "mode": "retention_scoped",
                    "dedupe_retention_days": 365,
                    "request_fingerprint": True,
                }
            },
            "max_payload": {
                "params": {"version": 1, "inline_bytes": 65_536, "blob_bytes": 524_288_000}
            },
        }


async def test_a_permanent_mesh_says_so(broker: Broker) -> None:
    """Its dedupe rows never expire, and no window is offered."""
    slug = await broker.mesh(dedupe_retention_mode="permanent")
    ana = await broker.member(slug)
    await ana.topic("alerts")
    async with ana.connected() as wire:
        params = (await wire.negotiate())["supported"]["client_message_id_dedupe"]["params"]
        assert params == {"version": 2, "mode": "permanent", "request_fingerprint": True}
        await wire.post("kept for ever"[:4], envelope())
    rows = await broker.rows(
        f"SELECT d.expires_at FROM {{}} d JOIN {{}} m ON m.id = d.mesh_id WHERE m.slug = '{slug}'",
        "client_message_dedupe",
        "mesh",
    )
    assert rows == [(None,)]


async def test_a_missing_feature(broker: Broker) -> None:
    """It is named, and nothing can be sent before a negotiation that misses nothing."""
    ana, _ = await pair(broker)
    async with Wire.open(ana) as wire:
        await wire.hello()
        response = await wire.negotiate("client_message_id_dedupe", "teleportation")
        assert response["missing_required"] == ["teleportation"]
        await wire.send({"type": "topics", "ref": 1})
        assert await wire.close_code() == 4400


@pytest.mark.parametrize("fault", ["another key", "another mesh", "another challenge", "rubbish"])
async def test_a_wrong_signature(broker: Broker, fault: str) -> None:
    """Only the member's key over this mesh and this challenge opens a connection."""
    ana, ben = await pair(broker)
    async with Wire.open(ana) as earlier, Wire.open(ana) as wire:
        await earlier.greeting()
        await wire.greeting()
        signature = {
            "another key": ben.key.sign_hello(ana.slug, wire.challenge),
            "another mesh": ana.key.sign_hello("elsewhere", wire.challenge),
            "another challenge": ana.key.sign_hello(ana.slug, earlier.challenge),
            "rubbish": "zz",
        }[fault]
        await wire.send({"type": "hello", "member_pubkey": ana.address, "signature": signature})
        assert await wire.close_code() == 4401


async def test_a_challenge_is_answered_once(broker: Broker) -> None:
    """A second hello, however right, closes the connection."""
    ana, _ = await pair(broker)
    async with Wire.open(ana) as wire:
        await wire.hello()
        signature = ana.key.sign_hello(ana.slug, wire.challenge)
        await wire.send({"type": "hello", "member_pubkey": ana.address, "signature": signature})
        assert await wire.close_code() == 4401


async def test_traffic_before_hello(broker: Broker) -> None:
    """Whoever has proved nothing is not listened to."""
    ana, _ = await pair(broker)
    async with Wire.open(ana) as wire:
        await wire.send({"type": "topics", "ref": 1})
        assert await wire.close_code() == 4401


async def test_no_hello_in_time(tmp_path: Path) -> None:
    """A silent connection is closed."""
    location = str(tmp_path / "tidelog.db")
    async with running_broker(tmp_path, location, hello_timeout_ms=50) as quick:
        ana, _ = await pair(quick)
        async with Wire.open(ana) as wire:
            assert await wire.close_code() == 4401
        async with ana.connected() as wire:
            await asyncio.sleep(0.1)
            assert (await wire.ask("topics"))["code"] == 200


async def test_who_is_no_member(broker: Broker) -> None:
    """A stranger, a member of another mesh and a revoked member are told so."""
    ana, ben = await pair(broker)
    stranger = Member(broker, ana.slug, new_key(), "eve")
    elsewhere = await broker.member(await broker.mesh())
    elsewhere.slug = ana.slug
    await broker.admin("DELETE", f"/mesh/{ana.slug}/members/{ben.address}")
    for who in (stranger, elsewhere, ben):
        async with Wire.open(who) as wire:
            await wire.greeting()
            signature = who.key.sign_hello(who.slug, wire.challenge)
            await wire.send({"type": "hello", "member_pubkey": who.address, "signature": signature})
            assert await wire.close_code() == 4403


async def test_an_unknown_mesh(broker: Broker) -> None:
    """There is nothing to say hello to."""
    ana, _ = await pair(broker)
    for slug in ("nowhere", "no%2Fwhere"):
        async with Wire.open(ana, slug) as wire:
            assert await wire.close_code() == 4404


async def test_revoked_while_connected(broker: Broker) -> None:
    """The connection ends at once, and what was on its way is refused."""
    ana, ben = await pair(broker)
    async with ana.connected() as wire, ben.connected() as other:
        await wire.until("peer_join", member_pubkey=ben.address)
        answer = await broker.admin("DELETE", f"/mesh/{ana.slug}/members/{ben.address}")
        assert answer.json() == {"member_pubkey": ben.address, "revoked": True}
        assert await other.close_code() == 4403
        await wire.until("peer_leave", member_pubkey=ben.address)
    again = await broker.admin("DELETE", f"/mesh/{ana.slug}/members/{ben.address}")
    assert again.status_code == 200


@pytest.mark.parametrize(
    "frame",
    [
        "not json",
        "[]",
        '{"type":"unheard of"}',
        '{"type":"subscribe","topic":"x"}',
        '{"type":"topics","ref":0}',
        '{"type":"send","ref":-1}',
        b"\x00binary",
        '{"type":"topics","ref":1,"pad":"' + "x" * 450_000 + '"}',
    ],
)
async def test_a_malformed_frame(broker: Broker, frame: str | bytes) -> None:
    """What is no frame of the protocol, or too large, closes the connection."""
    ana, _ = await pair(broker)
    async with ana.connected() as wire:
        await wire.socket.send(frame)
        assert await wire.close_code() == 4400


async def test_unknown_members_of_a_frame_are_ignored(broker: Broker) -> None:
    """A newer daemon may say more."""
    ana, _ = await pair(broker)
    async with ana.connected() as wire:
        assert (await wire.ask("topics", colour="blue"))["code"] == 200


async def test_subscriptions(broker: Broker) -> None:
    """Subscribing and unsubscribing are idempotent and need a topic that exists."""
    ana, ben = await pair(broker)
    await ben.topic("alerts")
    async with ana.connected() as wire:
        missing = await wire.ask("subscribe", topic="nowhere")
        assert (missing["code"], missing["error"]) == (404, "topic_not_found")
        bad = await wire.ask("subscribe", topic="")
        assert (bad["code"], bad["error"]) == (400, "destination_invalid")
        for kind, is_wanted in (("subscribe", True), ("unsubscribe", False)) * 2:
            for _ in range(2):
                answer = await wire.ask(kind, topic="alerts")
                assert (answer["code"], answer["subscribed"]) == (200, is_wanted)
            topics = (await wire.ask("topics"))["topics"]
            assert topics == [{"name": "alerts", "subscribed": is_wanted}]


async def test_a_send_before_an_unsubscription_is_in_time(broker: Broker) -> None:
    """Frames take effect in the order they came, though sends run together."""
    ana, ben = await pair(broker)
    await ben.topic("alerts")
    async with ana.connected() as wire:
        for number in range(20):
            await wire.send({"type": "subscribe", "ref": 1, "topic": "alerts"})
            await wire.send(
                {
                    "type": "send",
                    "ref": 2,
                    "client_message_id": unique("timely"),
                    "request_fingerprint": fingerprint(envelope(body=str(number))),
                    **envelope(body=str(number)),
                }
            )
            await wire.send({"type": "unsubscribe", "ref": 3, "topic": "alerts"})
            assert [(await wire.until("ack", ref=ref))["code"] for ref in (1, 2, 3)] == [
                200,
                201,
                200,
            ]


async def test_answers_to_sends(broker: Broker) -> None:
    """An ack has the body of the HTTP answer: first, duplicate, conflict."""
    ana, _ = await pair(broker)
    await ana.topic("alerts")
    client_id = unique("acked")
    async with ana.connected() as wire:
        first = await wire.post(client_id, envelope())
        again = await wire.post(client_id, envelope())
        other = await wire.post(client_id, envelope(body="other"))
        missing = await wire.ask("send", client_message_id=client_id, **envelope())
    assert (first["code"], first["duplicate"]) == (201, False)
    assert (again["code"], again["duplicate"]) == (200, True)
    assert again["broker_message_id"] == first["broker_message_id"]
    assert again["destination_kind"], again["destination_ref"] == ("topic", "alerts")
    assert (other["code"], other["conflict"]) == (409, "request_fingerprint_mismatch")
    assert len(other["broker_fingerprint_prefix"]) == 16
    assert (missing["code"], missing["error"]) == (400, "schema_invalid")


async def test_presence(broker: Broker) -> None:
    """Others are told of a member's first connection and of the end of its last, once each."""
    ana, ben = await pair(broker, clone_concurrency_policy="allow_concurrent")
    async with ana.connected() as wire:
        async with ben.connected():
            joined = await wire.until("peer_join")
            assert (joined["member_pubkey"], joined["name"]) == (ben.address, "ben")
            async with ben.connected():
                pass
        left = await wire.until("peer_leave")
        assert (left["member_pubkey"], left["name"]) == (ben.address, "ben")
        assert (await wire.ask("topics"))["code"] == 200
        assert wire._kept == []


async def test_history_shows_what_a_member_may_see(broker: Broker) -> None:
    """Its topics, and messages to or from it; not others' messages, other topics or queues."""
    ana, ben = await pair(broker)
    eve = await broker.member(ana.slug, "eve")
    await ana.topic("ours")
    await ben.subscribe("ours")
    await eve.topic("theirs")
    await ana.request("POST", "/queues", {"queue": "jobs"})
    sent = [
        (ana, envelope(ref="ours", body="to ours")),
        (eve, envelope(ref="theirs", body="to theirs")),
        (ana, envelope("dm", ben.address, "to ben", meta={"k": "\0"}, priority="low")),
        (ana, envelope("dm", eve.address, "to eve")),
        (eve, envelope("dm", ana.address, "from eve")),
        (ben, envelope("queue", "jobs", "a job")),
        (ana, envelope(ref="ours", body="AP8=", body_encoding="base64")),
    ]
    for who, fields in sent:
        assert (await who.post(unique(), fields)).status_code == 201
    seen = {ana: [1, 3, 4, 5, 7], ben: [1, 3, 7], eve: [2, 4, 5]}
    for who, places in seen.items():
        async with who.connected() as wire:
            page = await wire.ask("history", after=0, limit=500)
            assert [item["history_id"] for item in page["items"]] == places
            assert (page["next_after"], page["has_more"]) == (7, False)
            found, after, has_more = [], 0, True
            while has_more:
                part = await wire.ask("history", after=after, limit=2)
                found += [item["history_id"] for item in part["items"]]
                after, has_more = part["next_after"], part["has_more"]
            assert found == places
            empty = await wire.ask("history", after=10**30)
            assert empty["items"] == []
        over_http = await who.request("GET", "/history?after=0&limit=500")
        assert over_http.json()["items"] == page["items"]
    async with ben.connected() as wire:
        page = await wire.ask("history", after=2, limit=1)
    [item] = page["items"]
    assert item == {
        "broker_message_id": item["broker_message_id"],
        "client_message_id": item["client_message_id"],
        "history_id": 3,
        "mesh": ana.slug,
        "topic": None,
        "sender_pubkey": ana.address,
        "sender_name": "ana",
        "priority": "low",
        "reply_to_id": None,
        "meta": {"k": "\0"},
        "body": "to ben",
        "body_encoding": "utf8",
        "created_at": item["created_at"],
        "mention": False,
    }


async def test_a_page_ends_before_it_is_too_large(broker: Broker) -> None:
    """Large messages make short pages, and none is lost between them."""
    ana, _ = await pair(broker)
    await ana.topic("alerts")
    for _ in range(20):
        assert (await ana.post(unique(), envelope(body="x" * 65_536))).status_code == 201
    found: list[int] = []
    sizes: list[int] = []
    after = 0
    async with ana.connected() as wire:
        while len(found) < 20:
            page = await wire.ask("history", after=after, limit=500)
            sizes.append(len(json.dumps(page)))
            found += [item["history_id"] for item in page["items"]]
            after = page["next_after"]
    assert found == list(range(1, 21))
    assert len(sizes) > 1
    assert max(sizes) < 1_300_000


async def test_the_largest_body_passes_and_one_byte_more_is_answered(broker: Broker) -> None:
    """A body that is too large is refused with 413; the connection stays."""
    ana, _ = await pair(broker)
    await ana.topic("alerts")
    async with ana.connected() as wire:
        fits = await wire.post(unique(), envelope(body="\0" * 65_536))
        large = await wire.post(unique(), envelope(body="x" * 65_537))
    assert fits["code"] == 201
    assert (large["code"], large["error"]) == (413, "payload_too_large")


async def test_too_many_sends_at_once_wait(tmp_path: Path) -> None:
    """Beyond the limit the broker reads no further, and answers all of them."""
    location = str(tmp_path / "tidelog.db")
    async with running_broker(tmp_path, location, max_in_flight_sends=2) as narrow:
        ana, _ = await pair(narrow)
        await ana.topic("alerts")
        async with ana.connected() as wire:
            for ref in range(1, 301):
                fields = envelope(body=str(ref))
                await wire.send(
                    {
                        "type": "send",
                        "ref": ref,
                        "client_message_id": unique("narrow"),
                        "request_fingerprint": fingerprint(fields),
                        **fields,
                    }
                )
            for ref in range(1, 301):
                ack = await wire.until("ack", ref=ref)
                assert (ack["code"], ack["history_id"]) == (201, ref)
