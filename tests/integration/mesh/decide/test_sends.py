"""The phases of an accept, case by case: the answer, what is left, what it cost (mesh 6.1)."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from support.log.nodes import AppendItem
from support.mesh import mesh_cases
from support.mesh.peer import Broker, Json, Member, envelope, fingerprint, unique
from tidelog.base.errors import StoreUnavailable
from tidelog.daemon.key_file import new_key
from tidelog.log.decision import Accept, Names, RowChange, View
from tidelog.log.draft import Draft
from tidelog.log.request import submit_and_wait
from tidelog.log.retention import empty_bodies
from tidelog.mesh.protocol.model import Mesh, stream_name
from tidelog.mesh.protocol.policy import status_after
from tidelog.mesh.upkeep.limiter import Taken, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")

INLINE_BYTES = 65_536


class Scene:
    """A mesh with a topic `alerts`, a member that writes, and others; and what was counted."""

    def __init__(self, broker: Broker, slug: str, sender: Member, others: list[Member]) -> None:
        self.broker = broker
        self.slug = slug
        self.sender = sender
        self.others = others
        self.id = unique("send")
        self.units = 0
        self.counted = asyncio.Event()
        """Set with the first unit."""
        self._stack = ExitStack()

    def count_units(self) -> None:
        """Begin to count what the limiter takes."""
        limiter = self.broker.owner.limiter
        take, take_at_once = limiter.take, limiter.take_at_once

        def counted(taken: Taken | None) -> None:
            if taken is not None and taken.verdict is Verdict.TAKEN:
                self.units += 1
                self.counted.set()

        async def counting(*asked: Any) -> Taken:
            counted(taken := await take(*asked))
            return taken

        def counting_at_once(*asked: Any) -> Taken | None:
            counted(taken := take_at_once(*asked))
            return taken

        for name, method in (("take", counting), ("take_at_once", counting_at_once)):
            self._stack.enter_context(patch.object(limiter, name, method))

    def close(self) -> None:
        """Count no more."""
        self._stack.close()

    async def mesh(self) -> Mesh:
        """The mesh."""
        mesh = await self.broker.service.mesh(self.slug)
        assert mesh is not None
        return mesh

    async def left(self) -> Json:
        """How many rows of each kind there are of the send."""
        mesh_id = (await self.mesh()).id
        broker = self.broker
        owner = f"mesh_id = '{mesh_id}' AND client_message_id = '{self.id}'"
        dedupe = await broker.rows(
            f"SELECT broker_message_id FROM {{}} WHERE {owner}", "client_message_dedupe"
        )
        messages = [
            *await broker.rows(f"SELECT id FROM {{}} WHERE {owner}", "topic_message"),
            *await broker.rows(f"SELECT id FROM {{}} WHERE {owner}", "message_queue"),
        ]
        found: Json = {"dedupe": len(dedupe), "message": len(messages)}
        for name, relation in (
            ("history", "message_history"),
            ("delivery", "delivery_queue"),
            ("mention", "mention_index"),
            ("tombstone", "message_tombstone"),
        ):
            # A mesh of its own: whatever is in it is of this send.
            [(count,)] = await broker.rows(
                f"SELECT count(*) FROM {{}} WHERE mesh_id = '{mesh_id}'", relation
            )
            found[name] = count
        return found

    async def post(self, fields: Json | bytes | None = None, **more: Any) -> httpx.Response:
        """The send that the case is about."""
        return await self.sender.post(self.id, envelope() if fields is None else fields, **more)


Play = Callable[[Scene], Awaitable[list[httpx.Response]]]


class Prune:
    """What message retention does to one message (mesh 6.4)."""

    def __init__(self, mesh_id: str, client_id: str, history_id: int, message_id: str) -> None:
        self._at = (stream_name(mesh_id), history_id)
        self._key = client_id
        self._tombstone = (message_id, mesh_id)

    def decide(self, view: View) -> Accept:
        """Empty the body, note the tombstone, mark the key."""
        stream, history_id = self._at
        message_id, mesh_id = self._tombstone
        return Accept(
            None,
            rows=(
                empty_bodies(stream, history_id - 1, history_id),
                RowChange("mesh_add_tombstone", (message_id, mesh_id, view.now_ms, "retention")),
            ),
            unavailable=((stream, self._key),),
        )


async def committed_before(scene: Scene) -> list[httpx.Response]:
    """P01."""
    await scene.post()
    scene.count_units()
    return [await scene.post()]


async def pruned(scene: Scene) -> list[httpx.Response]:
    """P02."""
    first = (await scene.post()).json()
    mesh_id = (await scene.mesh()).id
    item = Prune(mesh_id, scene.id, first["history_id"], first["broker_message_id"])
    names = Names(dedupe=((stream_name(mesh_id), scene.id),))
    await submit_and_wait(scene.broker.server.committer, names, 100, (item,))
    scene.count_units()
    return [await scene.post()]


async def other_fingerprint(scene: Scene) -> list[httpx.Response]:
    """P03."""
    await scene.post()
    scene.count_units()
    return [await scene.post(envelope(body="something else"))]


async def saturated_by_others(scene: Scene) -> list[httpx.Response]:
    """P04."""
    await scene.post()
    await fill_window(scene, but=1)
    scene.count_units()
    return [await scene.post()]


async def fill_window(scene: Scene, *, but: int = 0) -> None:
    """Use all units of the window that are left, without any message."""
    limiter, mesh = scene.broker.owner.limiter, await scene.mesh()
    for number in range(mesh.rate_limit - but):
        now = scene.broker.service.clock.now_ms()
        taken = await limiter.take(mesh, "filler", f"filler-{number}", now)
        assert taken.verdict is Verdict.TAKEN


async def no_credentials(scene: Scene) -> list[httpx.Response]:
    """P05: none, a wrong scheme, rubbish, another's signature, expired, for too long."""
    scene.count_units()
    sender, broker = scene.sender, scene.broker
    path = f"/mesh/{scene.slug}/messages"
    headers = {"idempotency-key": scene.id}
    bare = await broker.http.post(path, json=envelope(), headers=headers)
    basic = {**headers, "authorization": "Basic abc"}
    now = broker.service.clock.now_ms() / 1000
    other = new_key().token(scene.slug, unix_now=now, jti=unique())
    forged = sender.token().rpartition(".")[0] + "." + other.rpartition(".")[2]
    tokens = ["rubbish", forged, sender.token(unix_now=now - 301), sender.token(unix_now=now + 400)]
    return [
        bare,
        await broker.http.post(path, json=envelope(), headers=basic),
        *[await scene.post(token=token) for token in tokens],
    ]


async def not_a_member(scene: Scene) -> list[httpx.Response]:
    """P06: a stranger, a member of another mesh, a revoked member."""
    scene.count_units()
    broker = scene.broker
    stranger = Member(broker, scene.slug, new_key(), "stranger")
    elsewhere = await broker.member(await broker.mesh())
    elsewhere.slug = scene.slug
    revoked = scene.others[0]
    answer = await broker.admin("DELETE", f"/mesh/{scene.slug}/members/{revoked.address}")
    assert answer.status_code == 200
    return [await who.post(scene.id, envelope()) for who in (stranger, elsewhere, revoked)]


async def no_mesh(scene: Scene) -> list[httpx.Response]:
    """P07."""
    scene.count_units()
    nowhere = Member(scene.broker, unique("nowhere"), scene.sender.key, "n")
    return [await nowhere.post(scene.id, envelope())]


async def bad_schema(scene: Scene) -> list[httpx.Response]:
    """P08."""
    scene.count_units()
    whole = envelope()
    wrong: list[Json | bytes] = [
        {name: value for name, value in whole.items() if name != missing} for missing in whole
    ]
    wrong += [
        {**whole, **change}
        for change in (
            {"body": 7},
            {"body": "!", "body_encoding": "base64"},
            {"body_encoding": "utf16"},
            {"envelope_version": "1"},
            {"destination_kind": 1},
            {"priority": "urgent"},
            {"meta": [1]},
            {"request_fingerprint": "abc"},
            {"supersedes": ""},
            {"meta": {"mentions": [f"{n:064x}" for n in range(257)]}},
        )
    ]
    wrong += [b"[]", b"{", b"\xff"]
    return [await scene.post(fields) for fields in wrong]


async def bad_kind(scene: Scene) -> list[httpx.Response]:
    """P09."""
    scene.count_units()
    return [await scene.post(envelope("broadcast"))]


async def too_large(scene: Scene) -> list[httpx.Response]:
    """P10: by one byte, in one-byte and in two-byte characters, and far too large."""
    scene.count_units()
    bodies = ("x" * (INLINE_BYTES + 1), "\u00fc" * (INLINE_BYTES // 2) + "x", "x" * 10**6)
    return [await scene.post(envelope(body=body)) for body in bodies]


async def just_fits(scene: Scene) -> list[httpx.Response]:
    """P11: also when JSON writes every byte as six."""
    scene.count_units()
    return [await scene.post(envelope(body="\0" * INLINE_BYTES))]


async def drift(scene: Scene) -> list[httpx.Response]:
    """P12."""
    scene.count_units()
    return [await scene.post({**envelope(), "request_fingerprint": "00" * 32})]


async def window_full(scene: Scene) -> list[httpx.Response]:
    """P13."""
    await fill_window(scene)
    scene.count_units()
    return [await scene.post()]


async def counted_before(scene: Scene) -> list[httpx.Response]:
    """P14."""
    assert (await scene.post(envelope(ref="no such topic"))).status_code == 404
    scene.count_units()
    return [await scene.post()]


async def no_topic(scene: Scene) -> list[httpx.Response]:
    """P15."""
    scene.count_units()
    meta = {"mentions": [scene.others[0].address]}
    return [await scene.post(envelope(ref="no such topic", meta=meta))]


async def not_subscribed(scene: Scene) -> list[httpx.Response]:
    """P16."""
    scene.count_units()
    return [await scene.others[0].post(scene.id, envelope())]


async def no_recipient(scene: Scene) -> list[httpx.Response]:
    """P17."""
    scene.count_units()
    return [await scene.post(envelope("dm", new_key().public_hex))]


async def no_queue(scene: Scene) -> list[httpx.Response]:
    """P18."""
    scene.count_units()
    return [await scene.post(envelope("queue", "no such queue"))]


async def to_a_topic(scene: Scene) -> list[httpx.Response]:
    """P19; a stranger who is mentioned is dropped."""
    for other in scene.others[:2]:
        await other.subscribe("alerts")
    scene.count_units()
    keys = [scene.others[2].address, new_key().public_hex]
    return [await scene.post(envelope(meta={"mentions": sorted(keys)}))]


async def to_nobody(scene: Scene) -> list[httpx.Response]:
    """P20."""
    scene.count_units()
    return [await scene.post()]


async def to_a_member(scene: Scene) -> list[httpx.Response]:
    """P21."""
    scene.count_units()
    return [await scene.post(envelope("dm", scene.others[0].address))]


async def to_a_queue(scene: Scene) -> list[httpx.Response]:
    """P22: every member may claim from a queue."""
    await scene.sender.request("POST", "/queues", {"queue": "thumbs"})
    scene.count_units()
    return [await scene.post(envelope("queue", "thumbs"))]


async def race(scene: Scene, *bodies: str) -> list[httpx.Response]:
    """Requests that all miss the fast path: the store is asked for all before any commits."""
    scene.count_units()
    sends = scene.broker.service._sends
    known = sends._known

    async def together(asked: list[Any]) -> Any:
        while len(asked) < len(bodies):
            await asyncio.sleep(0)
            asked += sends._waiting
            sends._waiting.clear()
        return await known(asked)

    with patch.object(sends, "_known", together):
        return await asyncio.gather(*(scene.post(envelope(body=body)) for body in bodies))


async def same_race(scene: Scene) -> list[httpx.Response]:
    """P23."""
    return await race(scene, "same", "same")


async def other_race(scene: Scene) -> list[httpx.Response]:
    """P24."""
    return await race(scene, "one", "other")


async def failing_insert(scene: Scene) -> list[httpx.Response]:
    """P25: the last insert of the transaction violates a constraint."""
    scene.count_units()
    store: Any = scene.broker.server.store
    text = store._queries["mesh_add_mention"]
    columns = "broker_message_id, mentioned_pubkey, NULL, history_id, created_at"
    broken = text.replace("VALUES (?1, ?2, ?3,", "VALUES (?1, ?2, NULL,")
    broken = broken.replace("SELECT new.*,", f"SELECT {columns},")
    assert broken != text
    meta = {"mentions": [scene.others[0].address]}
    with patch.dict(store._queries, {"mesh_add_mention": broken}):
        return [await scene.post(envelope(meta=meta))]


async def no_store(scene: Scene) -> list[httpx.Response]:
    """P26."""
    scene.count_units()
    failure = StoreUnavailable("the disk is on fire at host db-3")
    with patch.object(scene.broker.server.store, "rows_of", side_effect=failure):
        return [await scene.post()]


async def lost_answer(scene: Scene) -> list[httpx.Response]:
    """P27: the caller hangs up as soon as it has asked, and asks again."""
    scene.count_units()
    mesh = await scene.mesh()
    member = await scene.broker.service.member(mesh, scene.sender.address)
    assert member is not None
    asked = asyncio.create_task(scene.broker.service.accept(mesh, member, scene.id, envelope()))
    await scene.counted.wait()
    asked.cancel()
    return [await scene.post()]


async def corrected(scene: Scene) -> list[httpx.Response]:
    """P28."""
    assert (await scene.post(envelope(ref="no such topic"))).status_code == 404
    return [await scene.post()]


async def moderated(scene: Scene) -> list[httpx.Response]:
    """P29: the verdict is an entry about the message, on a stream of its own."""
    first = (await scene.post()).json()
    message_id = first["broker_message_id"]
    verdict = Draft("moderation", "probe", "verdict", message_id, "", "", b'{"rejected":true}')
    item = AppendItem(verdict)
    await submit_and_wait(scene.broker.server.committer, item.names(), 100, (item,))
    answer = await scene.post()
    assert answer.json()["broker_message_id"] == message_id
    return [answer]


PLAYS: dict[str, Play] = {
    "P01": committed_before,
    "P02": pruned,
    "P03": other_fingerprint,
    "P04": saturated_by_others,
    "P05": no_credentials,
    "P06": not_a_member,
    "P07": no_mesh,
    "P08": bad_schema,
    "P09": bad_kind,
    "P10": too_large,
    "P11": just_fits,
    "P12": drift,
    "P13": window_full,
    "P14": counted_before,
    "P15": no_topic,
    "P16": not_subscribed,
    "P17": no_recipient,
    "P18": no_queue,
    "P19": to_a_topic,
    "P20": to_nobody,
    "P21": to_a_member,
    "P22": to_a_queue,
    "P23": same_race,
    "P24": other_race,
    "P25": failing_insert,
    "P26": no_store,
    "P27": lost_answer,
    "P28": corrected,
    "P29": moderated,
}


@pytest.mark.parametrize("case", mesh_cases.params("broker_phases"))
async def test_a_phase(broker: Broker, case: mesh_cases.Case) -> None:
    """The answer, the daemon's row, the rows here and the limiter's units are the case's."""
    slug = await broker.mesh(rate_limit=20, rate_window_ms=86_400_000)
    sender, *others = [await broker.member(slug) for _ in range(4)]
    await sender.topic("alerts")
    scene = Scene(broker, slug, sender, others)
    try:
        responses = await PLAYS[case["id"]](scene)
    finally:
        scene.close()
    if "statuses_multiset" in case:
        statuses = Counter(response.status_code for response in responses)
        assert statuses == Counter(case["statuses_multiset"])
    for response in responses:
        expected = case.get("status", case.get("retry_status", response.status_code))
        assert response.status_code == expected, response.text
        body = response.json()
        for name, value in case.get("body", {}).items():
            assert (name in body, body.get(name)) == (True, value), response.text
        for name in case.get("body_present", ()):
            assert body.get(name) is not None, name
        for name in case.get("headers_present", ()):
            assert int(response.headers[name]) >= 1
        if "daemon" in case:
            assert status_after(response.status_code) == case["daemon"]
    if case.get("same_broker_message_id"):
        assert len({response.json()["broker_message_id"] for response in responses}) == 1
    if case["id"] == "P07":
        return
    left = await scene.left()
    for name, count in case["after"].items():
        assert left[name] == count, (name, left)
    if "budget" in case or "budget_total" in case:
        assert scene.units == case.get("budget", case.get("budget_total"))


async def test_every_case_is_played() -> None:
    """No case of the section is passed over."""
    assert sorted(PLAYS) == sorted(case["id"] for case in mesh_cases.cases("broker_phases"))


@pytest.mark.parametrize("case", mesh_cases.params("fingerprint_rejections"))
async def test_a_send_without_a_fingerprint(broker: Broker, case: mesh_cases.Case) -> None:
    """A direct caller gets the daemon's status and code; only a wrong kind has the broker's own."""
    slug = await broker.mesh()
    sender = await broker.member(slug)
    await sender.topic("alerts")
    fields = envelope(body="disk 91% on db-3")
    for name in ("destination_kind", "destination_ref", "reply_to_id", "priority"):
        if name in case:
            fields[name] = case[name]
    text = json.dumps(fields)
    if "meta_json" in case:
        text = f'{text[:-1]},"meta":{case["meta_json"]}}}'
    client_id = unique()
    answer = await sender.post(client_id, text.encode())
    code = "destination_kind_invalid" if case["id"] == "R12" else case["error"]
    assert (answer.status_code, answer.json()["error"]) == (case["status"], code)
    async with sender.connected() as wire:
        ref = 77
        frame = {"type": "send", "ref": ref, "client_message_id": client_id}
        frame["request_fingerprint"] = "00" * 32
        await wire.send(json.dumps(frame)[:-1] + "," + text[1:])
        ack = await wire.until("ack", ref=ref)
    assert (ack["code"], ack["error"]) == (case["status"], code)
    corrected = await sender.post(client_id, envelope())
    assert corrected.status_code == 201


async def test_a_send_without_an_id(broker: Broker) -> None:
    """A broker mints no ids: without one, or with one that cannot be, nothing is accepted."""
    slug = await broker.mesh()
    sender = await broker.member(slug)
    await sender.topic("alerts")
    answers = [
        await sender.request("POST", "/messages", envelope()),
        await sender.request("POST", "/messages", envelope(client_message_id=None)),
        await sender.post("", envelope(client_message_id="k")),
        await sender.post("has space", envelope()),
        await sender.post("x" * 129, envelope()),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"] == "client_message_id_invalid"
    in_body = await sender.request("POST", "/messages", envelope(client_message_id="in-body"))
    header = await sender.post("in-header", envelope(client_message_id="in-body"))
    assert in_body.json()["client_message_id"] == "in-body"
    assert header.json()["client_message_id"] == "in-header"


async def test_metrics_of_refusals(broker: Broker) -> None:
    """Drift, a full window and units without a message are counted by mesh."""
    slug = await broker.mesh(rate_limit=1, rate_window_ms=86_400_000)
    sender = await broker.member(slug)
    mesh = await broker.service.mesh(slug)
    assert mesh is not None
    member = await broker.service.member(mesh, sender.address)
    assert member is not None
    await sender.post(unique(), {**envelope(), "request_fingerprint": "00" * 32})
    await sender.post(unique(), envelope(ref="nowhere"))
    await sender.post(unique(), envelope(ref="nowhere"))
    prefix = "tidelog_broker_"
    drifted = broker.metric(
        f"{prefix}dedupe_fingerprint_mismatch_total", client_id=member.id, mesh_id=mesh.id
    )
    lost = broker.metric(f"{prefix}rate_limit_consumed_then_b2_rejected_total", mesh_id=mesh.id)
    refused = broker.metric(f"{prefix}rate_limit_rejection_total", mesh_id=mesh.id)
    assert (drifted, lost, refused) == (1, 1, 1)


async def test_the_right_fingerprint_is_accepted(broker: Broker) -> None:
    """What a daemon computes is what the broker computes, whatever the fields."""
    slug = await broker.mesh()
    sender, other = [await broker.member(slug) for _ in range(2)]
    fields = envelope(
        "dm",
        other.address,
        "AP8=",
        body_encoding="base64",
        priority="now",
        reply_to_id="01JB8Z5Q4T9W2X7M3K6N0P1R5S",
        meta={"b": "\0\ufffd", "a": [1.5, {"\u00e9": None}]},
    )
    answer = await sender.post(unique(), {**fields, "request_fingerprint": fingerprint(fields)})
    assert answer.status_code == 201
