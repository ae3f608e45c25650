"""Messages and ids whose time is over go (mesh 6.4); their places in the history stay."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tidelog.base.clock import Clock
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Failure, Item, Names, Refuse, RowChange, View
from tidelog.log.request import submit_and_wait
from tidelog.log.retention import come_through, empty_bodies, through_name
from tidelog.log.retention_metrics import RetentionMetrics
from tidelog.mesh.decide.claims import DEAD, DELIVERED, DeliveryKey
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.model import DAY_MS, Mesh, stream_name
from tidelog.mesh.upkeep.webhooks import key_of
from tidelog.store.engine import Store

BATCH = 100
"""Messages or ids of one transaction. The content of a message is read to find its id."""

MESHES_PAGE = 500

FINISHED_MS = 30 * DAY_MS
"""How long the row of a finished delivery is kept after its send: a consumer may acknowledge
again, and an operator may ask what became of it."""

SWEEP_ROWS = 1000
"""Deliveries looked at, and at most removed, in one step."""

REASON = "retention"
"""Of the tombstones written here."""

_log = logging.getLogger(__name__)


class _Fields(Struct):
    client_message_id: str = ""


_fields = msgspec.json.Decoder(_Fields).decode


def client_message_id_in(body: bytes) -> str:
    """The id in a stored send; empty, which no id is, if that is damaged."""
    try:
        return _fields(body).client_message_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


class Old(NamedTuple):
    """A message that is too old."""

    committed_id: int
    history_id: int
    broker_message_id: str
    client_message_id: str


class Expire(Struct, frozen=True):
    """Empty messages that are next to each other in the history of a mesh."""

    mesh_id: str
    messages: tuple[Old, ...]

    def names(self) -> Names:
        """The ids: one may belong to a younger message by now, whose content stays."""
        stream = stream_name(self.mesh_id)
        return Names(dedupe=tuple({(stream, old.client_message_id) for old in self.messages}))

    def decide(self, view: View) -> Accept:
        """Tombstone, id, content and deliveries at once; idempotent, for several nodes do it."""
        stream, now = stream_name(self.mesh_id), view.now_ms
        rows = [
            RowChange("mesh_add_tombstone", (old.broker_message_id, self.mesh_id, now, REASON))
            for old in self.messages
        ]
        rows += [
            RowChange("mesh_expire_deliveries", (old.broker_message_id,)) for old in self.messages
        ]
        rows += [empty_bodies(stream, old.history_id - 1, old.history_id) for old in self.messages]
        gone = []
        for old in self.messages:
            known = view.dedupe(stream, old.client_message_id)
            if known is not None and known.committed_id == old.committed_id:
                gone.append((stream, old.client_message_id))
        rows.append(RowChange("note_retention", (stream, self.messages[-1].history_id)))
        return Accept(len(self.messages), rows=tuple(rows), unavailable=tuple(gone))


class Forget(Struct, frozen=True):
    """Remove ids whose time is over."""

    keys: tuple[tuple[str, str, str], ...]
    """Scope, key and `broker_message_id` of each."""

    def names(self) -> Names:
        """Each may have been used again, or never ended, since it was found."""
        return Names(
            dedupe=tuple((scope, key) for scope, key, _ in self.keys),
            rows=tuple(("mesh_unfinished", (message,)) for _, _, message in self.keys),
        )

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; an id stays while somebody still waits for its message."""
        ended = []
        for scope, key, message in self.keys:
            row = view.dedupe(scope, key)
            if (
                row is not None
                and row.expires_at is not None
                and row.expires_at < view.now_ms
                and not view.rows("mesh_unfinished", (message,))
            ):
                ended.append((scope, key))
        return Accept(len(ended), forget=tuple(ended)) if ended else Refuse(0)


class Bury(Struct, frozen=True):
    """Deliveries to endpoints that are gone will not happen."""

    deliveries: tuple[tuple[str, str], ...]
    """`broker_message_id` and `endpoint_id` of each."""

    def names(self) -> Names:
        """Nothing: an endpoint that is gone does not come back."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            len(self.deliveries),
            rows=tuple(
                RowChange("mesh_bury_delivery", (*key_of(*delivery), "endpoint_removed"))
                for delivery in self.deliveries
            ),
        )


class Sweep(Struct, frozen=True):
    """Rows of finished deliveries go."""

    keys: tuple[DeliveryKey, ...]

    def names(self) -> Names:
        """Nothing: what is finished stays finished."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            len(self.keys), rows=tuple(RowChange("mesh_remove_delivery", key) for key in self.keys)
        )


def is_misconfigured(mesh: Mesh) -> bool:
    """Whether a mesh keeps messages for longer than the ids that protect them from repetition.

    One that is not told how long to keep messages was not configured, and so not wrongly.
    """
    return (
        mesh.dedupe_retention_mode != "permanent"
        and mesh.message_retention_days is not None
        and mesh.dedupe_retention_days < mesh.message_retention_days
    )


class Retention:
    """Looks for what is too old."""

    def __init__(self, committer: Committer, store: Store, clock: Clock) -> None:
        self._committer = committer
        self._metrics = committer.metrics.part(RetentionMetrics)
        self._store = store
        self._clock = clock
        self._floors: dict[str, int] = {}
        """By mesh with a retention: up to this `history_id` everything was emptied. It is stored
        too, so that what is gone is not looked through again after every start."""
        self._reported: set[str] = set()
        """Meshes whose settings were complained about."""

    async def tick(self) -> tuple[int, int]:
        """Remove what is too old now; returns how many messages and how many ids that were."""
        messages = 0
        async for mesh in self._meshes():
            if is_misconfigured(mesh) and mesh.id not in self._reported:
                self._report(mesh)
            if mesh.message_retention_days is not None:
                messages += await self._expire(mesh, mesh.message_retention_days)
        await self._bury()
        await self._sweep()
        return messages, await self._forget()

    def _report(self, mesh: Mesh) -> None:
        self._reported.add(mesh.id)
        self._committer.metrics.part(MeshMetrics).misconfigurations.labels(mesh.id).inc()
        _log.warning(
            "mesh %s keeps messages for %s days and their ids for %s: a late retry can double a "
            "message that is still there",
            mesh.slug,
            mesh.message_retention_days,
            mesh.dedupe_retention_days,
        )

    async def _meshes(self) -> AsyncIterator[Mesh]:
        after = ""
        while True:
            rows = await self._store.rows("mesh_page", (after, MESHES_PAGE))
            for row in rows:
                yield Mesh(*row)
            if len(rows) < MESHES_PAGE:
                return
            after = rows[-1][0]

    async def _expire(self, mesh: Mesh, days: int) -> int:
        before = self._clock.now_ms() - days * DAY_MS
        expired = 0
        stream = stream_name(mesh.id)
        if mesh.id not in self._floors:
            self._floors[mesh.id] = come_through(await self._store.rows(*through_name(stream)))
        while True:
            key = (stream, self._floors[mesh.id], before, BATCH)
            found = [
                Old(committed_id, history_id, message, client_message_id_in(body))
                for committed_id, history_id, message, body in await self._store.rows(
                    "mesh_too_old", key
                )
            ]
            if found:
                item = Expire(mesh.id, tuple(found))
                expired += await self._commit(item, item.names())
                self._floors[mesh.id] = found[-1].history_id
                self._metrics.removed.labels("mesh").inc(len(found))
            if len(found) < BATCH:
                return expired
            await asyncio.sleep(0)

    async def _forget(self) -> int:
        forgotten = 0
        while True:
            rows = await self._store.rows("mesh_expired_keys", (self._clock.now_ms(), BATCH))
            if rows:
                item = Forget(tuple((scope, key, message) for scope, key, message in rows))
                ended = await self._commit(item, item.names())
                forgotten += ended
                if not ended:
                    return forgotten  # all were used again; the next tick looks afresh
            if len(rows) < BATCH:
                return forgotten
            await asyncio.sleep(0)

    async def _bury(self) -> None:
        while True:
            rows = await self._store.rows("mesh_lost_webhook_deliveries", (BATCH,))
            if rows:
                item = Bury(tuple((message, endpoint) for message, endpoint in rows))
                await self._commit(item, item.names())
            if len(rows) < BATCH:
                return
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Ids of messages ascend in time, so the oldest deliveries are found without an index."""
        before = self._clock.now_ms() - FINISHED_MS
        after = DeliveryKey("", "", "", "")
        while True:
            rows = await self._store.rows("mesh_deliveries_page", (*after, SWEEP_ROWS))
            old = [row for row in rows if row[5] < before]
            finished = tuple(
                DeliveryKey._make(row[:4]) for row in old if row[4] in (DELIVERED, DEAD)
            )
            if finished:
                item = Sweep(finished)
                await self._commit(item, item.names())
            if len(old) < SWEEP_ROWS:
                return
            after = DeliveryKey._make(old[-1][:4])
            await asyncio.sleep(0)

    async def _commit(self, item: Item, names: Names) -> int:
        [answer] = await submit_and_wait(self._committer, names, 512 * BATCH, (item,))
        if isinstance(answer, Failure):
            raise answer.error
        count: int = answer
        return count
