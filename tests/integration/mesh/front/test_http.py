"""Meshes, members, topics, queues and webhooks over HTTP: who may, once or again (mesh 9.4)."""

import asyncio
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

import pytest

from support.mesh.peer import ADMIN_TOKEN, Broker, Json, Member, envelope, running_broker, unique
from tidelog.daemon.key_file import new_key
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_mesh_is_created_once(broker: Broker) -> None:
    """A slug is taken for good; its settings are what was asked for and the defaults."""
    slug = await broker.mesh(dedupe_retention_days=30, message_retention_days=7)
    again = await broker.admin("POST", "/mesh", {"slug": slug})
    assert (again.status_code, again.json()["error"]) == (409, "mesh_exists")
    rows = await broker.rows(
        "SELECT history_seq, dedupe_retention_mode, dedupe_retention_days, message_retention_days, "
        f"clone_concurrency_policy FROM {{}} WHERE slug = '{slug}'",
        "mesh",
    )
    assert rows == [(0, "retention_scoped", 30, 7, "prefer_newest")]


@pytest.mark.parametrize(
    "change",
    [
        {"slug": None},
        {"slug": ""},
        {"slug": "a/b"},
        {"slug": "x" * 65},
        {"dedupe_retention_days": 6},
        {"dedupe_retention_days": "9"},
        {"dedupe_retention_mode": "windowed"},
        {"message_retention_days": 0},
        {"echo_to_sender": 1},
        {"rate_limit": 0},
        {"rate_window_ms": 99},
    ],
)
async def test_a_mesh_that_cannot_be(broker: Broker, change: dict[str, object]) -> None:
    """Settings out of range are refused."""
    answer = await broker.admin("POST", "/mesh", {"slug": unique("odd"), **change})
    assert (answer.status_code, answer.json()["error"]) == (400, "schema_invalid")


async def test_administration_needs_its_token(broker: Broker) -> None:
    """Without the admin token, or with a member's, nothing is administered."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    routes = [
        ("POST", "/mesh"),
        ("POST", f"/mesh/{slug}/invites"),
        ("DELETE", f"/mesh/{slug}/members/{ana.address}"),
        ("GET", f"/mesh/{slug}/webhooks"),
        ("POST", f"/mesh/{slug}/webhooks"),
        ("DELETE", f"/mesh/{slug}/webhooks/x"),
    ]
    for method, path in routes:
        for token in (None, "x", ADMIN_TOKEN[:-1], ana.token()):
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = await broker.http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")


async def test_an_invite_makes_one_member(broker: Broker) -> None:
    """It is used once, by whoever is first; the member it made may ask again."""
    slug = await broker.mesh()
    invite = (await broker.admin("POST", f"/mesh/{slug}/invites")).json()["invite"]
    people = [Member(broker, slug, new_key(), f"p{n}") for n in range(5)]
    answers = await asyncio.gather(*(who.join(invite) for who in people))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [201, 403, 403, 403, 403]
    assert {a.json()["error"] for a in answers if a.status_code == 403} == {"invite_used"}
    [winner] = [who for who, a in zip(people, answers, strict=True) if a.status_code == 201]
    assert (await winner.join(invite)).status_code == 200
    winner.name = "another name"
    assert (await winner.join(invite)).json()["error"] == "already_a_member"


async def test_invites_are_kept_as_hashes(broker: Broker) -> None:
    """Whoever reads the store cannot join with what is in it."""
    slug = await broker.mesh()
    invite = (await broker.admin("POST", f"/mesh/{slug}/invites")).json()["invite"]
    rows = await broker.database.run("SELECT * FROM mesh_invite")
    assert rows
    assert invite.encode() not in repr(rows).encode()


async def test_an_invite_of_another_mesh(broker: Broker) -> None:
    """An invite opens the mesh it was made for, and none that does not exist opens anything."""
    slug, other = await broker.mesh(), await broker.mesh()
    invite = (await broker.admin("POST", f"/mesh/{other}/invites")).json()["invite"]
    for given in (invite, "rubbish"):
        answer = await Member(broker, slug, new_key(), "eve").join(given)
        assert (answer.status_code, answer.json()["error"]) == (403, "invite_invalid")


async def test_an_invite_expires(broker: Broker) -> None:
    """After its time it is worth nothing."""
    slug = await broker.mesh()
    made = await broker.admin("POST", f"/mesh/{slug}/invites", {"expires_in": 1})
    invite = made.json()["invite"]
    skew = broker.server.committer.clock_skew
    later = FakeClock(skew._clock.now_ms() + 2000)
    ana = Member(broker, slug, new_key(), "ana")
    with patch.object(skew, "_clock", later):
        answer = await ana.join(invite)
    assert (answer.status_code, answer.json()["error"]) == (403, "invite_expired")


async def test_a_join_proves_its_key(broker: Broker) -> None:
    """Nobody makes a member of another's key, or under a name that was not signed."""
    slug = await broker.mesh()
    invite = (await broker.admin("POST", f"/mesh/{slug}/invites")).json()["invite"]
    ana, eve = new_key(), new_key()
    body = {"invite": invite, "member_pubkey": ana.public_hex, "name": "ana"}
    right = ana.sign_join(slug, invite, "ana")
    wrong = [
        {**body, "signature": eve.sign_join(slug, invite, "ana")},
        {**body, "signature": right, "name": "admin"},
        {**body, "signature": ana.sign_join("elsewhere", invite, "ana")},
        {**body, "signature": "zz"},
        {**body, "signature": right, "member_pubkey": ana.public_hex.upper()},
    ]
    for fields in wrong:
        answer = await broker.http.post(f"/mesh/{slug}/members", json=fields)
        assert answer.status_code == 401
    for fields in ({**body}, {**body, "signature": right, "name": ""}, {**body, "signature": 7}):
        answer = await broker.http.post(f"/mesh/{slug}/members", json=fields)
        assert answer.status_code == 400
    answer = await broker.http.post(f"/mesh/{slug}/members", json={**body, "signature": right})
    assert answer.status_code == 201


async def test_names_are_unique_among_members(broker: Broker) -> None:
    """A name is somebody's until its member is revoked; also when both ask at once."""
    slug = await broker.mesh()
    ana = await broker.member(slug, "ana")
    taken = await Member(broker, slug, new_key(), "ana").join()
    assert (taken.status_code, taken.json()["error"]) == (409, "name_taken")
    await broker.admin("DELETE", f"/mesh/{slug}/members/{ana.address}")
    rivals = [Member(broker, slug, new_key(), "ana") for _ in range(4)]
    answers = await asyncio.gather(*(rival.join() for rival in rivals))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]


async def test_a_member_is_found_by_its_name(broker: Broker) -> None:
    """The one that has it now; a name that nobody has, or can have, is nobody's."""
    slug = await broker.mesh()
    ana, old = await broker.member(slug, "ana"), await broker.member(slug, "Gr\u00fc\u00dfe & co")

    async def keys(name: str) -> list[str]:
        page = (await ana.request("GET", f"/members?name={quote(name)}&after=")).json()
        assert page["has_more"] is False
        assert {item["name"] for item in page["items"]} <= {name}
        return [item["member_pubkey"] for item in page["items"]]

    assert await keys(old.name) == [old.address]
    await broker.admin("DELETE", f"/mesh/{slug}/members/{old.address}")
    assert await keys(old.name) == []
    new = await broker.member(slug, old.name)
    assert await keys(old.name) == [new.address]
    for name in ("", "nobody", "a\0b", "x" * 5000):
        assert await keys(name) == []


async def test_a_revoked_key_stays_revoked(broker: Broker) -> None:
    """Whoever invites it: a new membership needs a new key."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    await broker.admin("DELETE", f"/mesh/{slug}/members/{ana.address}")
    answer = await ana.join()
    assert (answer.status_code, answer.json()["error"]) == (403, "member_revoked")
    unknown = await broker.admin("DELETE", f"/mesh/{slug}/members/{'ab' * 32}")
    assert (unknown.status_code, unknown.json()["error"]) == (404, "member_not_found")


async def test_a_member_leaves(broker: Broker) -> None:
    """Its key is revoked, nobody else's, its connection ends, and its name is free again."""
    slug = await broker.mesh()
    ana, ben = await broker.member(slug, "ana"), await broker.member(slug, "ben")
    async with ana.connected() as wire:
        left = await ana.request("DELETE", "/membership")
        assert left.json() == {"member_pubkey": ana.address, "revoked": True}
        assert await wire.close_code() == 4403
    assert (await ana.request("DELETE", "/membership")).status_code == 403
    assert (await ben.request("GET", "/topics")).status_code == 200
    await broker.member(slug, "ana")


async def test_a_revoked_member_receives_nothing_more(broker: Broker) -> None:
    """Its subscriptions end, and direct messages do not find it."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    await broker.admin("DELETE", f"/mesh/{slug}/members/{ben.address}")
    posted = (await ana.post(unique(), envelope())).json()
    rows = await broker.rows(
        f"SELECT * FROM {{}} WHERE broker_message_id = '{posted['broker_message_id']}'",
        "delivery_queue",
    )
    assert rows == []
    direct = await ana.post(unique(), envelope("dm", ben.address))
    assert direct.json()["error"] == "recipient_not_found"


async def test_a_token_is_used_once(broker: Broker) -> None:
    """The second request with it is refused, also when both come at once."""
    ana = await broker.member(await broker.mesh())
    token = ana.token()
    answers = await asyncio.gather(*(ana.request("GET", "/topics", token=token) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 9
    late = await ana.request("GET", "/topics", token=token)
    assert (late.status_code, late.json()["error"]) == (401, "unauthenticated")


async def test_a_token_of_another_mesh(broker: Broker) -> None:
    """A member of two meshes cannot use the token of one in the other."""
    one, two = await broker.mesh(), await broker.mesh()
    ana = await broker.member(one)
    there = Member(broker, two, ana.key, "ana")
    assert (await there.join()).status_code == 201
    answer = await there.request("GET", "/topics", token=ana.token())
    assert answer.status_code == 401


async def test_topics(broker: Broker) -> None:
    """Creating and subscribing are idempotent; names may be of any text."""
    ana = await broker.member(await broker.mesh())
    name = "überwachung/東京 %"
    path = "/topics/%C3%BCberwachung%2F%E6%9D%B1%E4%BA%AC%20%25/subscription"
    created = [await ana.request("POST", "/topics", {"topic": name}) for _ in range(2)]
    assert [answer.status_code for answer in created] == [201, 200]
    for method, is_wanted in (("PUT", True), ("PUT", True), ("DELETE", False), ("DELETE", False)):
        answer = await ana.request(method, path)
        assert answer.json() == {"topic": name, "subscribed": is_wanted}
        topics = (await ana.request("GET", "/topics")).json()["topics"]
        assert topics == [{"name": name, "subscribed": is_wanted}]
    for wrong in ({"topic": ""}, {"topic": "a\0b"}, {"topic": "x" * 513}, {"topic": 7}, {}):
        assert (await ana.request("POST", "/topics", wrong)).status_code == 400
    missing = await ana.request("PUT", "/topics/nowhere/subscription")
    assert missing.json()["error"] == "topic_not_found"


async def test_queues(broker: Broker) -> None:
    """Creating is idempotent."""
    ana = await broker.member(await broker.mesh())
    created = [await ana.request("POST", "/queues", {"queue": "jobs"}) for _ in range(2)]
    assert [answer.status_code for answer in created] == [201, 200]
    assert (await ana.request("GET", "/queues")).json() == {"queues": ["jobs"]}


async def test_members_are_listed(broker: Broker) -> None:
    """By key and name, without those that were revoked."""
    slug = await broker.mesh()
    people = [await broker.member(slug) for _ in range(4)]
    await broker.admin("DELETE", f"/mesh/{slug}/members/{people[3].address}")
    page = (await people[0].request("GET", "/members")).json()
    listed = {item["member_pubkey"]: item["name"] for item in page["items"]}
    assert listed == {who.address: who.name for who in people[:3]}
    assert page["has_more"] is False
    after = (await people[0].request("GET", f"/members?after={page['next_after']}")).json()
    assert after["items"] == []


async def test_echo_to_sender(broker: Broker) -> None:
    """With the setting the sender is a recipient like any other subscriber."""
    for is_echoed in (False, True):
        slug = await broker.mesh(echo_to_sender=is_echoed)
        ana = await broker.member(slug)
        await ana.topic("alerts")
        posted = (await ana.post(unique(), envelope())).json()
        rows = await broker.rows(
            "SELECT recipient_pubkey, channel, endpoint_id, status, attempts FROM {} "
            f"WHERE broker_message_id = '{posted['broker_message_id']}'",
            "delivery_queue",
        )
        assert rows == ([(ana.address, "push", "", "pending", 0)] if is_echoed else [])


async def test_webhooks_get_rows(broker: Broker) -> None:
    """Endpoints of the mesh get every message, those of a topic that topic's, removed ones none."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ana.topic("other")
    path = f"/mesh/{slug}/webhooks"
    made = [
        await broker.admin("POST", path, {"url": "https://example.org/hook", "topic": topic})
        for topic in (None, "alerts", "other")
    ]
    everything, alerts, other = [answer.json()["id"] for answer in made]
    assert all(len(answer.json()["secret"]) >= 32 for answer in made)
    listed = (await broker.admin("GET", path)).json()["webhooks"]
    assert [hook["id"] for hook in listed] == [everything, alerts, other]
    assert "secret" not in str(listed)

    async def endpoints(fields: dict[str, object]) -> set[str]:
        posted = (await ana.post(unique(), fields)).json()
        rows = await broker.rows(
            "SELECT endpoint_id FROM {} WHERE channel = 'webhook' AND recipient_pubkey = '' "
            f"AND broker_message_id = '{posted['broker_message_id']}'",
            "delivery_queue",
        )
        return {endpoint_id for (endpoint_id,) in rows}

    assert await endpoints(envelope()) == {everything, alerts}
    assert await endpoints(envelope(ref="other")) == {everything, other}
    assert await endpoints(envelope("dm", ben.address)) == {everything}
    removed = await broker.admin("DELETE", f"{path}/{everything}")
    assert removed.json() == {"id": everything, "removed": True}
    assert (await broker.admin("DELETE", f"{path}/{everything}")).status_code == 404
    assert await endpoints(envelope()) == {alerts}
    unfinished = await broker.rows(
        f"SELECT status, last_error FROM {{}} WHERE endpoint_id = '{everything}'", "delivery_queue"
    )
    assert set(unfinished) == {("dead", "endpoint_removed")}
    for wrong in ({"url": "ftp://x"}, {}, {"url": "http://x", "secret": "short"}):
        assert (await broker.admin("POST", path, wrong)).status_code == 400


async def test_mentions(broker: Broker) -> None:
    """Newest first, page by page, and only what the reader may see."""
    slug = await broker.mesh()
    ana, ben, eve = [await broker.member(slug) for _ in range(3)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    meta = {"mentions": [eve.address]}
    sent = [
        envelope(meta=meta),
        envelope("dm", ben.address, meta=meta),
        envelope(),
        envelope("dm", eve.address, meta=meta),
        envelope(meta={"mentions": [ben.address, 7, "x"]}),
    ]
    for fields in sent:
        assert (await ana.post(unique(), fields)).status_code == 201

    async def places(who: Member, query: str) -> tuple[list[int], int, bool]:
        page = (await who.request("GET", f"/mentions?{query}")).json()
        items = [item["history_id"] for item in page["items"]]
        return items, page["next_before"], page["has_more"]

    of_eve = f"member={eve.address}"
    assert await places(ana, of_eve) == ([4, 2, 1], 1, False)
    assert await places(ana, f"{of_eve}&limit=2") == ([4, 2], 2, True)
    assert await places(ana, f"{of_eve}&limit=2&before=2") == ([1], 1, False)
    assert (await places(ben, of_eve))[0] == [2, 1]
    assert (await places(eve, ""))[0] == [4]
    assert (await places(ben, ""))[0] == [5]
    flagged = (await eve.request("GET", "/mentions")).json()["items"][0]
    assert flagged["mention"] is True
    assert (await ana.request("GET", "/mentions?member=x")).status_code == 400
    assert (await ana.request("GET", "/history?after=-1")).status_code == 400


async def test_supersedes_is_kept_outside_the_fingerprint(broker: Broker) -> None:
    """The entry names the retired id; the same send without it is the same send."""
    ana = await broker.member(await broker.mesh())
    await ana.topic("alerts")
    client_id = unique("successor")
    first = await ana.post(client_id, envelope(supersedes="retired-1"))
    again = await ana.post(client_id, envelope())
    assert (first.status_code, again.status_code) == (201, 200)
    message_id = first.json()["broker_message_id"]
    [(body,)] = await broker.database.run(f"SELECT body FROM log WHERE entity = '{message_id}'")
    assert b'"supersedes":"retired-1"' in bytes(body)


async def test_limits_of_a_mesh(tmp_path: Path) -> None:
    """Members, topics, subscribers, queues, webhooks and invites are bounded."""
    location = str(tmp_path / "tidelog.db")
    limits: Json = {
        "max_members": 2,
        "max_topics": 1,
        "max_topic_subscribers": 1,
        "max_queues": 1,
        "max_webhooks": 1,
        "max_open_invites": 1,
    }
    async with running_broker(tmp_path, location, **limits) as small:
        slug = await small.mesh()
        ana, ben = [await small.member(slug) for _ in range(2)]
        third = await Member(small, slug, new_key(), "third").join()
        assert third.json()["error"] == "too_many_members"
        invite = await small.admin("POST", f"/mesh/{slug}/invites")
        assert invite.json()["error"] == "too_many_invites"
        await ana.topic("one")
        two = await ana.request("POST", "/topics", {"topic": "two"})
        assert two.json()["error"] == "too_many_topics"
        subscriber = await ben.request("PUT", "/topics/one/subscription")
        assert subscriber.json()["error"] == "too_many_subscribers"
        queues = [await ana.request("POST", "/queues", {"queue": name}) for name in "ab"]
        assert queues[1].json()["error"] == "too_many_queues"
        url = {"url": "https://example.org"}
        hooks = [await small.admin("POST", f"/mesh/{slug}/webhooks", url) for _ in range(2)]
        assert hooks[1].json()["error"] == "too_many_webhooks"


async def test_everything_is_described(broker: Broker) -> None:
    """Every route is in the OpenAPI document."""
    document = (await broker.http.get("/openapi.json")).json()
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert {(route.method, route.path) for route in broker.surface.routes()} <= described
