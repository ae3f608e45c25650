"""Messages and ids whose time is over go (mesh 6.4); their places in the history stay."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from tidelog.base.clock import Clock
from tidelog.log.committer import Committer
from tidelog.log.decision import Failure, Item, Names
from tidelog.log.request import submit_and_wait
from tidelog.log.retention import come_through, through_name
from tidelog.log.retention_metrics import RetentionMetrics
from tidelog.mesh.decide.claims import DEAD, DELIVERED, DeliveryKey
from tidelog.mesh.decide.retention import Bury, Expire, Forget, Old, Sweep, is_misconfigured
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol.model import DAY_MS, Mesh, stream_name
from tidelog.store.engine import Store

BATCH = 100
"""Messages or ids of one transaction. The content of a message is read to find its id."""

MESHES_PAGE = 500

FINISHED_MS = 30 * DAY_MS
"""How long the row of a finished delivery is kept after its send: a consumer may acknowledge
again, and an operator may ask what became of it."""

SWEEP_ROWS = 1000
"""Deliveries looked at, and at most removed, in one step."""

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
