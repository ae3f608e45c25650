"""A store with a long log of all three surfaces, written by the surfaces' own services.

Requests go to the services in process and many at once, so that a commit holds hundreds of them:
what the committer decides, writes and deduplicates is what it would for the same requests over
sockets. The bodies of channel requests come from the generator of the property tests; purges,
snapshots, retention and acknowledgements happen on the way.

As a program, `python -m support.pipeline.mixed_log STORE ENTRIES SEED` writes one and prints what
is in it.
"""

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import uvloop

from support.channels import bodies as channel_bodies
from support.channels.peer import APP
from support.sync.peer import ADMIN_TOKEN, MODEL, SECRET, write_model
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import HttpRequest
from tidelog.base.settings.limits import Limits
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.requests import (
    Mutation,
    Publication,
    parse_mutation,
    parse_publication,
)
from tidelog.channels.protocol.runs import RunStart
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.channels.settings import AiTransport, Channels, History, VersionedMessages
from tidelog.channels.surface import open_halves as open_channels
from tidelog.config.schema import SCHEMA
from tidelog.config.settings import Settings
from tidelog.daemon.key_file import new_key
from tidelog.log.committer import Committer
from tidelog.log.decision import Names
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.mesh.decide.claims import Claim, Complete, DeliveryKey
from tidelog.mesh.messages import Leased
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.surface import MeshSurface
from tidelog.store import open_store
from tidelog.sync.front.admin import Admin
from tidelog.sync.protocol.actions import Submit
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY
from tidelog.sync.protocol.wire import Committed
from tidelog.sync.settings import SyncSettings
from tidelog.sync.surface import open_halves
from tidelog.testing.clock import FakeClock
from tidelog.testing.process import ServerProcess

if TYPE_CHECKING:
    from tidelog.channels.front.service import ChannelsService
    from tidelog.channels.upkeep.owner import ChannelsOwner
    from tidelog.mesh.protocol.model import Member, Mesh
    from tidelog.store.engine import Store
    from tidelog.sync.front.service import SyncService

Json = dict[str, Any]

ROUND = 1024
"""Requests under way at once: two full batches of the committer."""

SHARES = {"channels": 0.64, "sync": 0.28, "mesh": 0.08}
TEMPLATES = 3000
"""Different bodies of each kind of channel request; more would cost time and find nothing."""

WINDOW_MS = 600_000
"""Versions older than this go when channels are purged; also about how long the whole log takes,
on the services' clock, which ends before now."""

SLUG = "ops"
ACTIONS: tuple[MutationVerb, ...] = ("append", "update", "delete")
_encode = msgspec.json.Encoder().encode


class MixedLog(NamedTuple):
    """What was written."""

    location: str
    channels: tuple[str, ...]
    partitions: tuple[str, ...]
    kinds: dict[str, int]
    """Entries by kind."""
    refused: int
    """Requests that left nothing."""
    purged: int
    """Versions that channels' retention took."""
    archived: int
    """Events whose bodies sync's retention moved."""
    delivered: int
    """Deliveries that were acknowledged."""
    seconds: float


def settings_of(data_dir: Path, *, versioned: bool = True, window_ms: int = 0) -> Settings:
    """Of a server on such a store; also for one that is started on it later.

    Args:
        data_dir: Where the model file is put.
        versioned: Whether messages can change.
        window_ms: Versions older than this are removed; 0 keeps all.
    """
    return Settings(
        apps=[APP],
        admin_token=ADMIN_TOKEN,
        channels=Channels(
            history=History(retention_seconds=0, max_page_size=1000),
            versioned_messages=VersionedMessages(
                enabled=versioned,
                retention_window_seconds=window_ms // 1000,
                purge_interval_seconds=86_400,
            ),
            ai_transport=AiTransport(max_open_streaming_messages_per_channel=10_000),
        ),
        sync=SyncSettings(jwt_secret=SECRET, model_file=write_model(data_dir, MODEL)),
        mesh=MeshSettings(rate_limit=1_000_000),
    )


def serving(location: str, folder: Path, *, window_ms: int = 0) -> ServerProcess:
    """A real server for such a store, in a process of its own; not started yet.

    Args:
        location: The store.
        folder: For its files.
        window_ms: Channel versions older than this are removed within seconds; 0 keeps all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Json] = {
        "channels.history": {"retention_seconds": 0, "max_page_size": 1000},
        "channels.versioned_messages": {
            "enabled": True,
            "retention_window_seconds": window_ms // 1000,
            "purge_interval_seconds": 1,
        },
        "sync": {"jwt_secret": SECRET, "model_file": write_model(folder, MODEL)},
    }
    lines = ["[[apps]]", *(f"{n} = {json.dumps(getattr(APP, n))}" for n in ("id", "key", "secret"))]
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    config = folder / "tidelog.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    return ServerProcess(
        data_dir=folder,
        store=location,
        environment={"TIDELOG_TEST_PROBE": "0", "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
        arguments=("--config", str(config), "--log-level", "warning"),
    )


async def write_mixed_log(
    location: str,
    entries: int,
    seed: int,
    *,
    with_retention: bool = True,
    surfaces: Sequence[str] = tuple(SHARES),
) -> MixedLog:
    """Write a log of at least `entries` entries to a new store; the store is closed afterwards.

    Args:
        location: Path of an SQLite file or a PostgreSQL URL.
        entries: How many at least, a third of a round more at most.
        seed: Equal seeds write equal requests; ids and times differ.
        with_retention: Purge old channel versions and archive old events half-way.
        surfaces: Which of them are written to.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        writer = _Writer(location, Path(folder), seed, WINDOW_MS * ROUND // (entries + ROUND))
        writer.surfaces = frozenset(surfaces)
        await writer.open(versioned=False)
        await writer.write(entries // 50)
        await writer.close()
        await writer.open(versioned=True)
        await writer.write(entries // 4)
        old = writer.now_ms()
        await writer.write(entries // 2)
        if "channels" in surfaces:
            await writer.hide()
        if with_retention:
            await writer.retain(old)
        await writer.write(entries)
        written = await writer.summary(time.perf_counter() - started)
        await writer.close()
    return written


async def write_in_steps(
    location: str, heads: Sequence[int], seed: int, after_each: Callable[[], None]
) -> None:
    """Write a log up to one head after another; after each, with the store closed, do something.

    From the second step on there is retention too: of what the steps before it have written.
    """
    with tempfile.TemporaryDirectory() as folder:
        writer = _Writer(location, Path(folder), seed, WINDOW_MS * ROUND // (heads[-1] + ROUND))
        old = writer.now_ms()
        for number, head in enumerate(heads):
            await writer.open(versioned=True)
            await writer.write(head)
            if number == 1:
                await writer.hide()
            if number:
                await writer.retain(old)
            old = writer.now_ms()
            await writer.close()
            after_each()


def write(location: str, entries: int, seed: int, **options: Any) -> MixedLog:
    """`write_mixed_log` on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(write_mixed_log(location, entries, seed, **options))


class _Writer:
    """The services on one store, and what is being written with them."""

    def __init__(self, location: str, folder: Path, seed: int, round_ms: int) -> None:
        """`round_ms` is about how long a round takes, on the services' clock."""
        self._round_ms = max(1, round_ms)
        self._location = location
        self._folder = folder
        self._rng = random.Random(seed)
        self._seed = seed
        self._clock = FakeClock(int(time.time() * 1000) - 2 * WINDOW_MS)
        self._number = 0
        self.surfaces = frozenset(SHARES)
        self.refused = self.purged = self.archived = 0
        self.channels = _Channels(self._rng, self._clock)
        self.sync = _Sync(self._rng)
        self.mesh = _Mesh(self._rng, self._clock)
        self._store: Store
        self._committer: Committer

    async def open(self, *, versioned: bool) -> None:
        """Start the services."""
        settings = settings_of(self._folder, versioned=versioned, window_ms=WINDOW_MS)
        self._store = await open_store(SCHEMA, self._location, log_id="mixed", node="mixed")
        limits = Limits(commit_queue_requests=4 * ROUND)
        self._committer = await Committer.start(self._store, self._clock, Metrics(), limits)
        shared = (self._committer, self._store)
        halves = await open_channels(*shared, settings, self._clock)
        self.channels.owner, self.channels.service = halves
        self.channels.is_versioned = versioned
        _, self.sync.service = await open_halves(*shared, settings.sync, self._clock)
        surface = await MeshSurface.open(*shared, settings, self._clock)
        await self.mesh.open(surface, self._committer)

    async def close(self) -> None:
        """Stop them; everything is in the store."""
        await self._committer.stop()
        await self._store.close()

    async def write(self, head: int) -> None:
        """Write until the log has so many entries."""
        while (left := head - self._committer.tail.position) > 0:
            size = min(ROUND, left + left // 8 + 8)
            wanted = {
                name: max(1, round(size * share)) if name in self.surfaces else 0
                for name, share in SHARES.items()
            }
            self._clock.advance(self._rng.randint(1, 2 * self._round_ms))
            work: list[Awaitable[int]] = [
                *self.channels.requests(wanted["channels"]),
                *self.sync.requests(wanted["sync"]),
                *self.mesh.requests(wanted["mesh"]),
            ]
            self._rng.shuffle(work)
            self.refused += sum(await asyncio.gather(*work))
            if self._rng.random() < 0.2:
                await self.mesh.acknowledge()
        await self.mesh.acknowledge()

    def now_ms(self) -> int:
        """The time on the services' clock."""
        return self._clock.now_ms()

    async def hide(self) -> None:
        """Raise the history floors of two channels, one of them by a reset."""
        history_api = self.channels.service.history_api
        await history_api.purge(APP, self.channels.names[0], "all", None, "test", None)
        await history_api.reset(APP, self.channels.names[1], "test", None)

    async def retain(self, before_ms: int) -> None:
        """What is older than that goes in channels; what snapshots cover in sync is archived."""
        await self.sync.snapshot()
        self._clock.set(before_ms + WINDOW_MS)
        self.purged += await self.channels.purge()
        self.archived += await self.sync.retain(self._committer.tail.position)

    async def summary(self, seconds: float) -> MixedLog:
        """What there is now."""
        kinds: Counter[str] = Counter()
        after = 0
        while page := await self._store.entries(after, limit=5000):
            kinds.update(f"{entry.surface} {entry.kind}" for entry in page)
            after = page[-1].committed_id
        return MixedLog(
            self._location,
            tuple(self.channels.names),
            tuple(self.sync.partitions),
            dict(kinds),
            self.refused,
            self.purged,
            self.archived,
            self.mesh.delivered,
            seconds,
        )


class _Channels:
    """Messages that are created, appended to, updated and deleted, also after a delete."""

    def __init__(self, rng: random.Random, clock: FakeClock) -> None:
        self.owner: ChannelsOwner
        self.service: ChannelsService
        self.is_versioned = True
        self._rng = rng
        self._clock = clock
        self.names = [f"room-{n}" for n in range(24)] + ["private-ai:x;y", "presence-team"]
        self._messages: list[tuple[str, str]] = []
        """Channel and serial of those that are still written to."""
        self._number = 0
        limits = Channels()
        self._creates = [
            parse_publication(
                _encode(channel_bodies.create(rng, f"t{n}") | {"channel": "room-0"}), None, limits
            )
            for n in range(TEMPLATES)
        ]
        self._mutations = {
            action: [
                parse_mutation(
                    action, "", "", _encode(channel_bodies.MAKERS[action](rng, f"{action}-{n}"))
                )
                for n in range(TEMPLATES)
            ]
            for action in ACTIONS
        }

    def requests(self, count: int) -> Iterable[Awaitable[int]]:
        """Requests; each answers whether it was refused."""
        for _ in range(count):
            if self.is_versioned and self._messages and self._rng.random() < 0.88:
                yield self._mutate()
            else:
                yield self._create()

    async def _create(self) -> int:
        self._number += 1
        channel = self._rng.choice(self.names)
        publication: Publication = msgspec.structs.replace(
            self._rng.choice(self._creates),
            channels=(channel if self.is_versioned else f"plain-{self._number % 3}",),
            message_id=f"m{self._number}" if self._rng.random() < 0.3 else None,
            # Some begin a run, whose owner is a row beside them.
            starts=RunStart(f"r{self._number}", "c1") if self._number % 9 == 0 else None,
        )
        answer = await self.service.publish(APP, [publication], request_key=None, is_batch=False)
        if isinstance(answer, Fault):
            return 1
        if self.is_versioned:
            made = json.loads(answer.body)["channels"][channel]
            self._messages.append((channel, made["message_serial"]))
            if len(self._messages) > 4 * ROUND:
                del self._messages[: 2 * ROUND]
        return 0

    def _mutate(self) -> Awaitable[int]:
        action: MutationVerb = self._rng.choices(ACTIONS, (9, 3, 1))[0]
        channel, serial = self._rng.choice(self._messages)
        self._number += 1
        mutation: Mutation = msgspec.structs.replace(
            self._rng.choice(self._mutations[action]),
            channel=channel,
            message_serial=serial,
            op_id=f"o{self._number}" if self._rng.random() < 0.2 else None,
            client_id=f"c{self._number % 7}" if self._rng.random() < 0.3 else None,
        )
        return self._refused(mutation)

    async def _refused(self, mutation: Mutation) -> int:
        if not isinstance(await self.service.mutate(APP, mutation), Fault):
            return 0
        if mutation.verb == "append":  # its stream has ended, or its data is no text
            with contextlib.suppress(ValueError):
                self._messages.remove((mutation.channel, mutation.message_serial))
        return 1

    async def purge(self) -> int:
        """Remove old versions; returns how many."""
        return await self.owner.retention.tick()


class _Sync:
    """Trees, values and events in several partitions."""

    def __init__(self, rng: random.Random) -> None:
        self.service: SyncService
        self._rng = rng
        self.partitions = [f"team/{n}" for n in range(30)] + ["caf\u00e9", "all"]
        self._nodes: dict[str, list[str]] = {name: [] for name in self.partitions}
        """Nodes that are probably there."""
        self._number = 0

    def requests(self, count: int) -> Iterable[Awaitable[int]]:
        """Submits of some items each; each answers how many were refused."""
        for begin in range(0, count, 20):
            items = [self._item() for _ in range(min(20, count - begin))]
            yield self._submit(tuple(items))

    async def _submit(self, items: tuple[PreparedItem, ...]) -> int:
        results = await self.service.commit(Submit(items, sum(len(item.body) for item in items)))
        return sum(not isinstance(result, Committed) for result in results)

    def _item(self) -> PreparedItem:
        self._number += 1
        count = self._rng.choice([1, 1, 1, 2, 3])
        names = self._rng.sample(self.partitions, count)
        event = self._event(names)
        return prepare(
            {"id": f"e{self._number}", "partitions": names, "event": event},
            _encode(event),
            client_id=f"device-{self._number % 11}",
            profile=CANONICAL if event["type"] == "event" else COMPATIBILITY,
            model=self.service.model,
            allows=lambda _: True,
        )

    def _event(self, names: list[str]) -> Json:
        rng, nodes = self._rng, self._nodes[names[0]]
        kind = rng.random()
        if kind < 0.15:
            data = {"title": f"t{rng.randint(0, 5)}", "by": self._number, "x": "\u00e9\0"}
            return {"type": "event", "payload": {"schema": "any", "data": data}}
        if kind < 0.35:
            payload = {"target": f"v.k{rng.randint(0, 9)}", "value": {"n": self._number, "f": 0.5}}
            if kind < 0.2:
                return {"type": "unset", "payload": {"target": f"v.k{rng.randint(0, 9)}"}}
            return {"type": "set", "payload": payload}
        if kind < 0.65 or len(nodes) < 3 or len(names) > 1:
            return self._push(names)
        node, other = rng.sample(nodes[-200:], 2)
        position = rng.choice(["first", "last", {"after": other}, {"before": other}])
        target: Json = {"target": "t"}
        if kind < 0.78:
            target["options"] = {"id": node, "parent": "_root", "position": position}
            return {"type": "treeMove", "payload": target}
        if kind < 0.92:
            target |= {"value": {"by": self._number}, "options": {"id": node}}
            return {"type": "treeUpdate", "payload": target}
        nodes.remove(node)
        return {"type": "treeDelete", "payload": {**target, "options": {"id": node}}}

    def _push(self, names: list[str]) -> Json:
        options: Json = {}
        nodes = self._nodes[names[0]]
        if len(names) == 1 and len(nodes) > 3 and self._rng.random() < 0.5:
            options["parent"] = self._rng.choice(nodes[-20:])
        node = f"n{self._number}"
        for name in names:
            self._nodes[name].append(node)
        value = {"id": node, "title": channel_bodies.text(self._rng)}
        return {"type": "treePush", "payload": {"target": "t", "value": value, "options": options}}

    async def snapshot(self) -> None:
        """Let the server store the states of half of the partitions."""
        for name in self.partitions[::2]:
            await self._admin("PUT", "/sync/admin/snapshot", {"partition": name})

    async def retain(self, through: int) -> int:
        """Archive what snapshots cover; returns how many events that are."""
        answer = await self._admin("POST", "/sync/admin/retention", {"through": through})
        archived: int = answer["archived"]
        return archived

    async def _admin(self, method: str, path: str, body: Json) -> Json:
        routes = {(r.method, r.path): r for r in Admin(self.service, ADMIN_TOKEN).routes()}
        headers = ((b"authorization", f"Bearer {ADMIN_TOKEN}".encode()),)
        request = HttpRequest(method, path.encode(), b"", headers, _encode(body), "test")
        response = await routes[method, path].handle(request)
        assert response.status == 200, response
        answer: Json = json.loads(response.body)
        return answer


class _Mesh:
    """Sends to topics, members and queues, some of which are acknowledged."""

    def __init__(self, rng: random.Random, clock: FakeClock) -> None:
        self._rng = rng
        self._clock = clock
        self._number = 0
        self.delivered = 0
        self._surface: MeshSurface
        self._committer: Committer
        self._mesh: Mesh | None = None
        self._members: list[Member] = []

    async def open(self, surface: MeshSurface, committer: Committer) -> None:
        """Use a broker; the first time, make a mesh with five members."""
        self._surface = surface
        self._committer = committer
        service = surface.service
        if self._mesh is not None:
            return
        await service.create_mesh({"slug": SLUG, "rate_limit": 1_000_000})
        self._mesh = await service.mesh(SLUG)
        assert self._mesh is not None
        for number in range(5):
            key, name = new_key(), f"member-{number}"
            invite = (await service.invite(self._mesh, {})).body["invite"]
            fields = {
                "invite": invite,
                "member_pubkey": key.public_hex,
                "name": name,
                "signature": key.sign_join(SLUG, invite, name),
            }
            assert (await service.join(self._mesh, fields)).status == 201
            member = await service.member(self._mesh, key.public_hex)
            assert member is not None
            self._members.append(member)
            for topic in ("alerts", "deploys"):
                await service.create_topic(self._mesh, member, topic)
                await service.subscribe(self._mesh, member, topic, is_wanted=True)
        await service.create_queue(self._mesh, self._members[0], "thumbs")

    def requests(self, count: int) -> Iterable[Awaitable[int]]:
        """Sends; each answers whether it was refused."""
        for _ in range(count):
            yield self._send()

    async def _send(self) -> int:
        assert self._mesh is not None
        self._number += 1
        rng = self._rng
        sender, other = rng.sample(self._members, 2)
        kind, ref = rng.choice(
            [("topic", "alerts"), ("dm", other.public_hex), ("queue", "thumbs"), ("dm", "")]
        )
        if not ref:
            kind, ref = "topic", "deploys"
        fields: Json = {
            "envelope_version": 1,
            "destination_kind": kind,
            "destination_ref": ref,
            "body": channel_bodies.text(rng),
            "priority": rng.choice(["now", "next", "low"]),
        }
        if rng.random() < 0.3:
            fields["meta"] = {"mentions": [other.public_hex], "n": self._number}
        message_id = f"send-{self._number:010d}"
        reply = await self._surface.service.accept(self._mesh, sender, message_id, fields)
        assert reply.status == 201, reply
        return 0

    async def acknowledge(self) -> None:
        """One member gets and acknowledges a part of what waits for it."""
        assert self._mesh is not None
        member = self._rng.choice(self._members[:3])
        claim = Claim(
            mesh_id=self._mesh.id,
            member=member,
            queue_id="thumbs" if self._rng.random() < 0.3 else None,
            claim_id=f"claim-{self._number}.{member.id}",
            lease_ms=30_000,
            limit=200,
            max_bytes=2**20,
            asked_at=self._clock.now_ms(),
        )
        answers = await submit_and_wait(self._committer, claim.names(), 512, (claim,))
        [leased] = without_failure(answers)
        assert isinstance(leased, Leased)
        items = [
            Complete(self._mesh.id, DeliveryKey(message, claim.recipient), claim.claim_id)
            for message, _ in leased.messages[: self._rng.randint(0, 200)]
        ]
        if items:
            self._clock.advance(self._rng.randint(1, 30))
            names = Names(rows=tuple(("mesh_delivery", item.key) for item in items))
            without_failure(await submit_and_wait(self._committer, names, 512, items))
            self.delivered += len(items)


def main() -> None:
    """Write one and say what is in it."""
    leave_startup_out()
    location, entries, seed, *options = sys.argv[1:]
    written = write(location, int(entries), int(seed), with_retention="--keep-all" not in options)
    print(json.dumps(written._asdict()))  # noqa: T201 - what the program is for


if __name__ == "__main__":
    main()
