"""The owner's half of the mesh and several fronts, over a link that only data can cross."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.link.listening_front import ListeningFront
from support.mesh.peer import Broker, Member, envelope, running_broker, unique
from tidelog.base.errors import QueueFull
from tidelog.link.message import Failed
from tidelog.mesh import messages
from tidelog.mesh.decide.webhook_posts import BATCH
from tidelog.mesh.messages import (
    VOCABULARY,
    Arrive,
    Arrived,
    Claim,
    End,
    Hello,
    Leased,
    Left,
    MeshChanged,
    PeerSeen,
    Revoked,
    Wake,
    Welcome,
)
from tidelog.mesh.upkeep import webhooks as webhooks_module
from tidelog.mesh.upkeep.owner import MeshOwner


class Front(ListeningFront):
    """A front that only listens, and asks what the tests ask."""

    def __init__(self, owner: MeshOwner) -> None:
        super().__init__(owner, VOCABULARY)


class Scene:
    """A mesh, and two more fronts beside that of the broker."""

    def __init__(self, broker: Broker, slug: str, one: Front, other: Front) -> None:
        self.broker = broker
        self.slug = slug
        self.one = one
        self.other = other

    async def arrive(self, front: Front, connection: int, member: Member, instance: str) -> None:
        """A connection of a member at a front."""
        mesh = await self.broker.service.mesh(self.slug)
        assert mesh is not None
        known = await self.broker.service.member(mesh, member.address)
        assert known is not None
        await front.end.reply(Arrive(connection, mesh, known, instance), Arrived)

    async def claim(self, member: Member) -> Claim:
        """What a lane of a member asks for."""
        mesh = await self.broker.service.mesh(self.slug)
        assert mesh is not None
        known = await self.broker.service.member(mesh, member.address)
        assert known is not None
        return Claim(mesh.id, known, 1, 30_000)


@asynccontextmanager
async def fronts(tmp_path: Path, **settings: Any) -> AsyncIterator[Scene]:
    """A broker with two more fronts."""
    async with running_broker(tmp_path, str(tmp_path / "tidelog.db")) as broker:
        slug = await broker.mesh(**settings)
        one, other = Front(broker.owner), Front(broker.owner)
        for front in (one, other):
            await front.end.reply(Hello(), Welcome)
        yield Scene(broker, slug, one, other)


async def test_daemons_with_one_key_meet_over_all_fronts(tmp_path: Path) -> None:
    """The older one is ended at its front; its member stays present until the last has left."""
    async with fronts(tmp_path) as scene:
        ana = await scene.broker.member(scene.slug, "ana")
        await scene.arrive(scene.one, 7, ana, "a")
        seen = await scene.one.one()
        assert seen == PeerSeen(seen.mesh_id, ana.address, "ana", is_present=True)
        assert await scene.other.one() == seen
        await scene.arrive(scene.other, 7, ana, "b")
        assert await scene.one.one() == End(7, 4003, "replaced_by_newer_connection")
        scene.one.end.tell(Left(7))
        await scene.arrive(scene.one, 8, ana, "b")
        assert await scene.other.one() == End(7, 1013, "reconnected")
        scene.other.end.tell(Left(7))
        scene.one.end.tell(Left(8))
        gone = PeerSeen(seen.mesh_id, ana.address, "ana", is_present=False)
        assert [await scene.one.one(), await scene.other.one()] == [gone, gone]


async def test_the_oldest_stays_at_another_front(tmp_path: Path) -> None:
    """The newer one is told so before it is told that it has arrived, and nobody has seen it."""
    async with fronts(tmp_path, clone_concurrency_policy="prefer_oldest") as scene:
        ana = await scene.broker.member(scene.slug, "ana")
        await scene.arrive(scene.one, 1, ana, "a")
        await scene.one.one()
        await scene.other.one()
        await scene.arrive(scene.other, 2, ana, "b")
        assert scene.other.heard == [End(2, 4004, "member_already_connected")]
        assert scene.one.heard == []


async def test_a_front_that_is_lost_takes_its_members_with_it(tmp_path: Path) -> None:
    """Others see them leave; it is told nothing more."""
    async with fronts(tmp_path) as scene:
        ana = await scene.broker.member(scene.slug, "ana")
        await scene.arrive(scene.one, 1, ana, "a")
        await scene.other.one()
        scene.one.heard.clear()
        scene.one.at_owner.lost()
        assert (await scene.other.one()).is_present is False
        assert (await ana.post(unique(), envelope("dm", ana.address))).status_code == 201
        assert scene.one.heard == []


async def test_only_the_front_of_a_receiver_is_woken(tmp_path: Path) -> None:
    """By a direct message; by a post every front with members, and the store knows for whom.

    A post that nobody receives wakes no front.
    """
    async with fronts(tmp_path) as scene:
        ana, ben = [await scene.broker.member(scene.slug) for _ in range(2)]
        await ana.topic("alerts")
        await scene.arrive(scene.one, 1, ben, "b")
        for front in (scene.one, scene.other):
            await front.one()
        await ana.post(unique(), envelope("dm", ben.address))
        woken = await scene.one.one()
        assert isinstance(woken, Wake)
        assert [key for _, key in woken.recipients] == [ben.address]
        assert (await ana.post(unique(), envelope())).status_code == 201
        await ben.subscribe("alerts")
        sent = await ana.post(unique(), envelope())
        woken = await scene.one.one()
        assert [post for _, post in woken.posts] == [sent.json()["broker_message_id"]]
        assert scene.other.heard == []


async def test_every_front_hears_of_settings_and_revocations_before_the_caller(
    tmp_path: Path,
) -> None:
    """When a change is answered, no front goes on as it was."""
    async with fronts(tmp_path) as scene:
        ana = await scene.broker.member(scene.slug)
        mesh = await scene.broker.service.mesh(scene.slug)
        assert mesh is not None
        ended = messages.EndMembership(mesh.id, ana.address, is_revoked=False)
        for question, told in (
            (messages.ChangeMesh(mesh, {"rate_limit": 7}), MeshChanged(mesh.id, mesh.slug)),
            (ended, Revoked(mesh.id, ana.address)),
        ):
            await scene.one.end.reply(question, messages.Replied)
            assert scene.one.heard.pop() == told
            assert await scene.other.one() == told


async def test_who_asks_is_answered_also_if_a_mistake_follows_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed; whoever waits learns that something is wrong, and does not wait for ever."""
    async with fronts(tmp_path) as scene:
        ana = await scene.broker.member(scene.slug)
        mesh = await scene.broker.service.mesh(scene.slug)
        assert mesh is not None

        def mistake(mesh_id: str, public_hex: str) -> None:
            raise LookupError(mesh_id, public_hex)

        monkeypatch.setattr(scene.broker.owner.peers, "revoked", mistake)
        ended = messages.EndMembership(mesh.id, ana.address, is_revoked=True)
        async with asyncio.timeout(60):
            answer = await scene.one.end.answer(ended)
        assert answer == Failed("TidelogError", "internal error (LookupError)")
        assert await scene.broker.service.member(mesh, ana.address) is None


async def test_claims_for_one_recipient_are_decided_one_after_the_other(tmp_path: Path) -> None:
    """However many ask at once, at whatever front: none gets what another has."""
    async with fronts(tmp_path) as scene:
        ana, ben = [await scene.broker.member(scene.slug) for _ in range(2)]
        for _ in range(3):
            await ana.post(unique(), envelope("dm", ben.address))
        claim = await scene.claim(ben)
        asked = [front.end.reply(claim, Leased) for front in (scene.one, scene.other) * 2]
        leased = [each.messages for each in await asyncio.gather(*asked)]
        assert sorted(len(each) for each in leased) == [0, 1, 1, 1]
        assert len({message for each in leased for message, _ in each}) == 3
        assert scene.broker.owner.leasing._claims == {}


async def test_a_claim_without_room_does_not_hold_up_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails alone, also while others for its recipient wait behind it."""
    async with fronts(tmp_path) as scene:
        ana, ben = [await scene.broker.member(scene.slug) for _ in range(2)]
        await ana.post(unique(), envelope("dm", ben.address))
        claim, leasing = await scene.claim(ben), scene.broker.owner.leasing
        submit: Callable[[Any], None] = leasing._committer.submit
        refused: list[Any] = []

        def full(request: Any) -> None:
            if refused:
                submit(request)
            else:
                refused.append(request)
                raise QueueFull("no room")

        monkeypatch.setattr(leasing._committer, "submit", full)
        answers = await asyncio.gather(*(scene.one.end.answer(claim) for _ in range(2)))
        assert answers[0] == Failed("QueueFull", "no room")
        assert isinstance(answers[1], Leased)
        assert len(answers[1].messages) == 1


async def test_what_a_front_gives_back_wakes_the_others(tmp_path: Path) -> None:
    """A message that one did not acknowledge is pushed by another at once."""
    async with fronts(tmp_path, clone_concurrency_policy="allow_concurrent") as scene:
        ana, ben = [await scene.broker.member(scene.slug) for _ in range(2)]
        await ana.post(unique(), envelope("dm", ben.address))
        await scene.arrive(scene.other, 1, ben, "b")
        await scene.other.one()
        claim = await scene.claim(ben)
        leased = await scene.one.end.reply(claim, Leased)
        [(message, _)] = leased.messages
        given_back = messages.Release(claim.mesh_id, ben.address, [(message, leased.claim_id)])
        scene.one.end.tell(given_back)
        woken = await scene.other.one()
        assert woken == Wake([(claim.mesh_id, ben.address)], [])
        assert (await scene.other.end.reply(claim, Leased)).messages[0][0] == message


async def test_what_a_lost_front_had_leased_waits_again_at_once(tmp_path: Path) -> None:
    """Also what was leased to it after that; not what arrived, nor what a queue's consumer has."""
    async with fronts(tmp_path, clone_concurrency_policy="allow_concurrent") as scene:
        ana, ben = [await scene.broker.member(scene.slug) for _ in range(2)]
        sent = [(await ana.post(unique(), envelope("dm", ben.address))).json() for _ in range(3)]
        arrived, pushed, late = [each["broker_message_id"] for each in sent]
        await ana.request("POST", "/queues", {"queue": "jobs"})
        assert (await ana.post(unique(), envelope("queue", "jobs"))).status_code == 201
        await scene.arrive(scene.other, 1, ben, "b")
        await scene.other.one()
        claim = await scene.claim(ben)
        first = await scene.one.end.reply(claim, Leased)
        acknowledged = messages.Acknowledgement(claim.mesh_id, ben.address, arrived, first.claim_id)
        scene.one.end.tell(messages.Acknowledge([acknowledged]))
        assert (await scene.one.end.reply(claim, Leased)).messages[0][0] == pushed
        job = msgspec.structs.replace(claim, queue_id="jobs")
        assert len((await scene.one.end.reply(job, Leased)).messages) == 1
        scene.one.at_owner.received(0, claim)  # decided when the front is lost
        scene.one.at_owner.lost()
        assert await scene.other.one() == Wake([(claim.mesh_id, ben.address)], [])
        assert await scene.other.one() == Wake([(claim.mesh_id, ben.address)], [])
        again = [(await scene.other.end.reply(claim, Leased)).messages[0][0] for _ in range(2)]
        assert again == [pushed, late]
        assert (await scene.other.end.reply(job, Leased)).messages == ()


async def test_a_front_that_hangs_keeps_no_endpoint_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than its lease: then the next front has its turn."""
    async with fronts(tmp_path) as scene:
        broker = scene.broker
        monkeypatch.setattr(
            webhooks_module,
            "LEASE_MARGIN_MS",
            1 - BATCH * broker.owner.webhooks._settings.webhook_timeout_ms,
        )
        monkeypatch.setattr(broker.owner, "_fronts", broker.owner._fronts[1:2])
        ana = await broker.member(scene.slug)
        await ana.topic("alerts")
        hook = {"url": "http://127.0.0.1:9/", "topic": "alerts"}
        await broker.admin("POST", f"/mesh/{scene.slug}/webhooks", hook)
        await ana.post(unique(), envelope())
        assert isinstance(await scene.one.one(), messages.Post)
        async with asyncio.timeout(60):
            await broker.owner.webhooks.settled()


async def test_webhooks_are_posted_by_fronts_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has one endpoint at a time; what a lost front had to post another one does at once."""
    async with fronts(tmp_path) as scene:
        broker, webhooks = scene.broker, scene.broker.owner.webhooks
        ana = await broker.member(scene.slug)
        await ana.topic("alerts")
        hook = {"url": "http://127.0.0.1:9/", "topic": "alerts"}
        for _ in range(2):
            answer = await broker.admin("POST", f"/mesh/{scene.slug}/webhooks", hook)
            assert answer.status_code == 201
        sent = (await ana.post(unique(), envelope())).json()
        posts = [await front.one() for front in (scene.one, scene.other)]
        assert len({post.endpoint_id for post in posts}) == 2
        for post in posts:
            assert [each for each, _ in post.leased.messages] == [sent["broker_message_id"]]
        told = messages.Attempted(posts[0].endpoint_id, sent["broker_message_id"], "", 200)
        kept = msgspec.structs.replace(told, claim_id=posts[0].leased.claim_id)
        for attempted in (told, kept):
            assert (await scene.one.end.reply(attempted, messages.Noted)).goes_on
        steps = ("webhook_lost", "webhook_delivered")
        name = "tidelog_broker_deliveries_total"
        assert [broker.metric(name, step=step) for step in steps] == [1, 1]
        scene.one.end.tell(messages.PostsEnded(posts[0].leased.claim_id))
        monkeypatch.setattr(broker.owner, "_fronts", (scene.one.at_owner, scene.other.at_owner))
        scene.other.at_owner.lost()
        again = await scene.one.one()
        assert again.endpoint_id == posts[1].endpoint_id
        assert again.leased.messages == posts[1].leased.messages
        scene.one.end.tell(messages.PostsEnded(again.leased.claim_id))
        await webhooks.settled()


async def test_nothing_is_leased_for_a_webhook_while_there_is_no_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lease counts as an attempt, and after some the message would be given up unposted."""
    async with fronts(tmp_path) as scene:
        broker = scene.broker
        ana = await broker.member(scene.slug)
        await ana.topic("alerts")
        monkeypatch.setattr(broker.owner, "_fronts", ())
        hook = {"url": "http://127.0.0.1:9/", "topic": "alerts"}
        await broker.admin("POST", f"/mesh/{scene.slug}/webhooks", hook)
        await ana.post(unique(), envelope())
        await broker.owner.webhooks.look()
        await broker.owner.webhooks.settled()
        query = "SELECT status, attempts FROM {} WHERE channel = 'webhook'"
        assert await broker.rows(query, "delivery_queue") == [("pending", 0)]


async def test_what_a_front_says_does_not_harm_the_owner(tmp_path: Path) -> None:
    """What cannot be done is answered as failed, and the next question as ever."""
    async with fronts(tmp_path) as scene:
        nobody = messages.Left(99)
        scene.one.end.tell(nobody)
        odd: Any = messages.Welcome(())
        scene.one.at_owner.received(0, odd)
        answer = await scene.one.end.reply(messages.UseToken("t", 2**40), messages.TokenUsed)
        assert answer.is_new
