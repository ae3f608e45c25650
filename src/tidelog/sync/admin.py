"""Administration of sync over HTTP: model version, connections, snapshots, retention."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.base.surface import HttpRequest, HttpResponse, Route, is_bearer
from tidelog.log.decision import Accept, Failure, Names, RowChange, View
from tidelog.log.request import submit_and_wait
from tidelog.log.retention import PRUNE_ENTRIES, empty_bodies
from tidelog.sync.rules import STREAM
from tidelog.sync.service import SyncService
from tidelog.sync.wire import encode


class ModelVersion(Struct):
    """Body of `PUT /sync/admin/model-version`."""

    model_version: int


class Snapshot(Struct):
    """Body of `PUT /sync/admin/snapshot`: the state of one partition.

    Without a state the server stores its own. With one, it is stored only if it belongs to this
    log: `digest` must be that of the entry at `committed_id`.
    """

    partition: str
    state: dict[str, Any] | None = None
    committed_id: int = 0
    model_version: int = 0
    digest: str = ""


class Retention(Struct):
    """Body of `POST /sync/admin/retention`: archive what lies at or before a position."""

    through: int


class PutSnapshot(Struct, frozen=True):
    """Store the state of a partition."""

    partition: str
    state: bytes
    committed_id: int
    model_version: int

    def decide(self, view: View) -> Accept:
        """Checked before; appends nothing."""
        values = (
            self.partition,
            self.state,
            self.committed_id,
            view.now_ms,
            self.model_version,
        )
        return Accept(None, rows=(RowChange("sync_put_snapshot", values),))


class Archive(Struct, frozen=True):
    """Move the bodies of events to where sync still reads them (D57)."""

    events: tuple[tuple[int, int], ...]
    """(committed_id, stream_serial) of each."""

    def decide(self, view: View) -> Accept:
        """Whoever asked saw that every partition has a snapshot; snapshots never go back."""
        del view
        return Accept(
            len(self.events),
            rows=tuple(RowChange("sync_archive", (at,)) for at, _ in self.events)
            + tuple(empty_bodies(STREAM, serial - 1, serial) for _, serial in self.events),
        )


class Admin:
    """The routes under `/sync/admin`; all need the admin token."""

    def __init__(self, service: SyncService, admin_token: str) -> None:
        self._service = service
        self._token = admin_token

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return (
            Route("GET", "/sync/admin/model-version", self._guarded(self._get_version)),
            Route("PUT", "/sync/admin/model-version", self._guarded(self._put_version)),
            Route("GET", "/sync/admin/connections", self._guarded(self._get_connections)),
            Route("PUT", "/sync/admin/snapshot", self._guarded(self._put_snapshot)),
            Route("POST", "/sync/admin/retention", self._guarded(self._post_retention)),
        )

    def _guarded(
        self, handle: Callable[[HttpRequest], Awaitable[object]]
    ) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
        async def guarded(request: HttpRequest) -> HttpResponse:
            if not is_bearer(request, self._token):
                error = "send the admin token: Authorization: Bearer <admin_token>"
                return HttpResponse(401, encode({"error": error}))
            try:
                return HttpResponse(200, encode(await handle(request)))
            except (msgspec.MsgspecError, ValueError) as error:
                return HttpResponse(400, encode({"error": str(error)[:300]}))

        return guarded

    async def _get_version(self, request: HttpRequest) -> object:
        del request
        return {"model_version": self._service.model_version}

    async def _put_version(self, request: HttpRequest) -> object:
        version = msgspec.json.decode(request.body, type=ModelVersion).model_version
        old = await self._service.set_model_version(version)
        return {"old_model_version": old, "new_model_version": version}

    async def _get_connections(self, request: HttpRequest) -> object:
        del request
        return {
            "last_committed_id": self._service.last_event,
            "connections": [
                {
                    "client_id": client_id,
                    "profile": connection.session.profile,
                    "subscriptions": connection.subscriptions,
                    "cursor": connection.cursor,
                }
                for client_id, connection in sorted(self._service.clients.items())
            ],
        }

    async def _put_snapshot(self, request: HttpRequest) -> object:
        snapshot = msgspec.json.decode(request.body, type=Snapshot)
        service = self._service
        if snapshot.state is None:
            pinned = await service.states.pin([snapshot.partition])
            try:
                state = pinned[snapshot.partition]
                put = PutSnapshot(
                    snapshot.partition,
                    encode(state.tree.export()),
                    state.position,
                    service.model_version,
                )
            finally:
                service.states.unpin(pinned)
        else:
            await self._check(snapshot)
            put = PutSnapshot(
                snapshot.partition,
                encode(snapshot.state),
                snapshot.committed_id,
                snapshot.model_version,
            )
        await self._commit(put, len(put.state))
        return {"partition": put.partition, "committed_id": put.committed_id}

    async def _check(self, snapshot: Snapshot) -> None:
        if snapshot.model_version != self._service.model_version:
            raise ValueError(
                f"model_version {snapshot.model_version} is not the current one, "
                f"{self._service.model_version}"
            )
        found = await self._service.store.entries(snapshot.committed_id - 1, limit=1)
        if not found or found[0].digest.hex() != snapshot.digest:
            raise ValueError("digest is not that of the entry at committed_id: another log?")

    async def _post_retention(self, request: HttpRequest) -> object:
        through = msgspec.json.decode(request.body, type=Retention).through
        archived, serial = 0, 0
        while found := await self._service.store.rows(
            "sync_prunable", (serial, through, PRUNE_ENTRIES)
        ):
            events = tuple((at, number) for at, number in found)
            await self._commit(Archive(events), 64 * len(events))
            archived += len(events)
            serial = events[-1][1]
        return {"archived": archived}

    async def _commit(self, item: PutSnapshot | Archive, size_bytes: int) -> None:
        [answer] = await submit_and_wait(self._service.committer, Names(), size_bytes, (item,))
        if isinstance(answer, Failure):
            raise answer.error
