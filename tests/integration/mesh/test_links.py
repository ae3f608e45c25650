"""The mesh is the same to its daemons and callers whatever connects its halves."""

from pathlib import Path

import pytest

from support.mesh.peer import Json, Member, Wire, envelope, running_broker, unique
from tidelog.link import bounds
from tidelog.link.choice import VARIABLE


@pytest.fixture(params=["encoded", "apart"])
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The links that only data can cross."""
    chosen: str = request.param
    monkeypatch.setenv(VARIABLE, chosen)
    return chosen


async def acknowledge(wire: Wire, delivered: Json) -> None:
    """What a daemon sends when a message is in its inbox."""
    names = ("broker_message_id", "client_message_id", "claim_id")
    await wire.send({"type": "client_ack", **{name: delivered[name] for name in names}})


async def ok(member: Member, method: str, path: str, body: object = None) -> Json:
    """A request that is not refused."""
    answer = await member.request(method, path, body)
    assert answer.status_code in (200, 201), answer.text
    told: Json = answer.json()
    return told


async def test_everything_that_the_mesh_does_crosses_the_link(link: str, tmp_path: Path) -> None:
    """Members, sends of every kind, leases, rivals, presence, settings and revocations."""
    del link
    async with running_broker(tmp_path, str(tmp_path / "tidelog.db")) as broker:
        slug = await broker.mesh(rate_limit=9, rate_window_ms=86_400_000)
        ana, ben = await broker.member(slug, "ana"), await broker.member(slug, "ben")
        for member in (ana, ben):
            await member.topic("alerts")
        await ok(ana, "POST", "/queues", {"queue": "thumbs"})
        token = ana.token()
        assert (await ana.request("GET", "/topics", token=token)).status_code == 200
        assert (await ana.request("GET", "/topics", token=token)).status_code == 401
        async with ana.connected("a") as hers, ben.connected("b") as his:
            assert (await hers.until("peer_join"))["member_pubkey"] == ben.address
            # A topic, over the socket; a repeated id is a duplicate and no second unit.
            client_id = unique("post")
            first = await hers.post(client_id, envelope(meta={"mentions": [ben.address]}))
            assert (first["code"], first["history_id"]) == (201, 1)
            again = await hers.post(client_id, envelope(meta={"mentions": [ben.address]}))
            assert (again["code"], again["duplicate"]) == (200, True)
            assert (await hers.post(client_id, envelope(body="other")))["code"] == 409
            post = await his.until("deliver")
            assert (post["body"], post["mention"]) == ("hello", True)
            await acknowledge(his, post)
            # A direct message, over HTTP; what is not acknowledged goes to who comes back.
            assert (await ana.post(unique("dm"), envelope("dm", ben.address))).status_code == 201
            lost = await his.until("deliver", history_id=2)
            async with ben.connected("b") as back:
                assert await his.close_code() == 1013
                came = await back.until("deliver", history_id=2)
                assert came["claim_id"] != lost["claim_id"]
                await acknowledge(back, came)
                async with ben.connected("rival") as rival:
                    assert await back.close_code() == 4003
                    page = await rival.ask("history", after=0, limit=10)
                    assert [item["history_id"] for item in page["items"]] == [1, 2]
            assert (await hers.until("peer_leave"))["member_pubkey"] == ben.address
            # A queue: one lease at a time, which its consumer completes and nobody else.
            for _ in range(2):
                job = envelope("queue", "thumbs")
                assert (await ana.post(unique("job"), job)).status_code == 201
            one = await ok(ben, "POST", "/queues/thumbs/claim", {"limit": 1})
            two = await ok(ana, "POST", "/queues/thumbs/claim", {"limit": 5})
            assert [item["history_id"] for item in one["items"] + two["items"]] == [3, 4]
            done = {"claim_id": one["claim_id"], "broker_message_id": ""}
            done["broker_message_id"] = one["items"][0]["broker_message_id"]
            refused = await ana.request("POST", "/queues/thumbs/ack", done)
            assert (refused.status_code, refused.json()["error"]) == (409, "claim_lost")
            completed = await ok(ben, "POST", "/queues/thumbs/ack", done)
            assert completed["completed"] == [done["broker_message_id"]]
            # Refusals: of the decision, which uses a unit, and of the limiter.
            nowhere = await hers.post(unique(), envelope(ref="nowhere"))
            assert (nowhere["code"], nowhere["error"]) == (404, "topic_not_found")
            answers = [await hers.post(unique(), envelope()) for _ in range(5)]
            assert [each["code"] for each in answers] == [201, 201, 201, 201, 429]
            # What there is in the mesh, by members and administrators.
            assert (await hers.ask("unsubscribe", topic="alerts"))["code"] == 200
            assert (await hers.ask("topics"))["topics"] == [{"name": "alerts", "subscribed": False}]
            denied = await ben.request("DELETE", "/topics/alerts")
            assert denied.json()["error"] == "not_the_creator"
            for path in ("/topics/alerts", "/queues/thumbs"):
                assert (await ok(ana, "DELETE", path))["removed"]
            hook = {"url": "http://127.0.0.1:9/", "topic": "alerts"}
            added = (await broker.admin("POST", f"/mesh/{slug}/webhooks", hook)).json()
            removed = await broker.admin("DELETE", f"/mesh/{slug}/webhooks/{added['id']}")
            assert removed.json() == {"id": added["id"], "removed": True}
            invited = (await broker.admin("POST", f"/mesh/{slug}/invites")).json()
            gone = await broker.admin("DELETE", f"/mesh/{slug}/invites/{invited['id']}")
            assert gone.json() == {"id": invited["id"], "removed": True}
            changed = await broker.admin("PATCH", f"/mesh/{slug}", {"rate_limit": 100})
            assert changed.json()["rate_limit"] == 100
            assert await hers.close_code() == 1013
        async with ana.connected("a") as hers:
            await broker.admin("DELETE", f"/mesh/{slug}/members/{ana.address}")
            assert await hers.close_code() == 4403
        assert (await ok(ben, "DELETE", "/membership"))["revoked"]
        assert await broker.owner.periodic.check() == 0


async def test_a_send_that_cannot_be_sent_on_is_refused_alone(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is too large; the next one is accepted."""
    del link
    async with running_broker(tmp_path, str(tmp_path / "tidelog.db")) as broker:
        ana = await broker.member(await broker.mesh())
        monkeypatch.setattr(bounds, "MAX_MESSAGE_BYTES", 4000)
        large = await ana.post(unique(), envelope("dm", ana.address, "x" * 4000))
        assert (large.status_code, large.json()["error"]) == (413, "payload_too_large")
        assert (await ana.post(unique(), envelope("dm", ana.address))).status_code == 201
