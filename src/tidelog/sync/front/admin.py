"""Administration of sync over HTTP: model version, connections, snapshots, retention."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Struct

from tidelog.base.errors import Unsendable
from tidelog.base.serving.surface import (
    Admit,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
    is_bearer,
)
from tidelog.sync import messages
from tidelog.sync.front.service import SyncService
from tidelog.sync.messages import TOO_DEEP, PutSnapshot, SnapshotRefused, TakeSnapshot
from tidelog.sync.protocol.partitions import name_faults, normal_name
from tidelog.sync.protocol.tree import TreeState
from tidelog.sync.protocol.wire import encode

Stored = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that both engines can hold."""


class ModelVersion(Struct):
    """Body of `PUT /sync/admin/model-version`."""

    model_version: Stored


class Snapshot(Struct):
    """Body of `PUT /sync/admin/snapshot`: the state of one partition.

    Without a state the server stores its own. With one, it is stored only if it belongs to this
    log: `digest` must be that of the entry at `committed_id`.
    """

    partition: str
    state: dict[str, Any] | None = None
    committed_id: Stored = 0
    model_version: Stored = 0
    digest: str = ""


class Retention(Struct):
    """Body of `POST /sync/admin/retention`: archive what lies at or before a position."""

    through: Stored


class NewerSnapshot(ValueError):  # noqa: N818 - the failure is the noun
    """The partition has a newer snapshot; who sends many snapshots goes on with the next."""


class Admin:
    """The routes under `/sync/admin`; all need the admin token."""

    def __init__(self, service: SyncService, admin_token: str) -> None:
        self._service = service
        self._token = admin_token

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return (
            guarded("GET", "/sync/admin/model-version", self._guarded(self._get_version)),
            guarded("PUT", "/sync/admin/model-version", self._guarded(self._put_version)),
            guarded("GET", "/sync/admin/connections", self._guarded(self._get_connections)),
            guarded("GET", "/sync/admin/snapshot", self._guarded(self._get_snapshot)),
            guarded("PUT", "/sync/admin/snapshot", self._guarded(self._put_snapshot)),
            guarded("POST", "/sync/admin/retention", self._guarded(self._post_retention)),
        )

    def _guarded(self, handle: Callable[[HttpRequest], Awaitable[object]]) -> Admit:
        async def handled(request: HttpRequest) -> HttpResponse:
            try:
                return HttpResponse(200, encode(await handle(request)))
            except NewerSnapshot as error:
                return HttpResponse(400, encode({"error": str(error), "code": "newer_snapshot"}))
            except (msgspec.MsgspecError, Unsendable, ValueError) as error:
                return HttpResponse(400, encode({"error": str(error)[:300]}))

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            if is_bearer(request, self._token):
                return handled
            error = "send the admin token: Authorization: Bearer <admin_token>"
            return HttpResponse(401, encode({"error": error}))

        return admit

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
                    "client_id": connection.client_id,
                    "profile": connection.session.profile,
                    "subscriptions": connection.subscriptions,
                    "cursor": connection.cursor,
                }
                for connection in sorted(self._service.active(), key=lambda each: each.client_id)
            ],
        }

    async def _get_snapshot(self, request: HttpRequest) -> object:
        """The current state of a partition; nothing is stored."""
        query = parse_qs(request.query_string.decode("ascii", "replace"))
        partition = _named("".join(query.get("partition", ())))
        made = await self._asked(TakeSnapshot(partition, is_stored=False))
        return {
            "partition": partition,
            "committed_id": made.committed_id,
            "model_version": made.model_version,
            "state": msgspec.Raw(made.state),
        }

    async def _put_snapshot(self, request: HttpRequest) -> object:
        snapshot = msgspec.json.decode(request.body, type=Snapshot)
        partition = _named(snapshot.partition)
        question: TakeSnapshot | PutSnapshot = TakeSnapshot(partition, is_stored=True)
        if snapshot.state is not None:
            try:
                await self._check(snapshot)
                state = encode(snapshot.state)
            except RecursionError:
                raise ValueError(TOO_DEEP) from None
            question = PutSnapshot(partition, state, snapshot.committed_id, snapshot.model_version)
        stored = await self._asked(question)
        return {"partition": partition, "committed_id": stored.committed_id}

    async def _asked(self, question: TakeSnapshot | PutSnapshot) -> messages.Snapshot:
        """What the owner of the log has taken or stored."""
        answer = await self._service.link.reply(question, messages.Snapshot, SnapshotRefused)
        if isinstance(answer, SnapshotRefused):
            raise NewerSnapshot(answer.reason) if answer.is_newer else ValueError(answer.reason)
        assert isinstance(answer, messages.Snapshot)  # noqa: S101 - `reply` has seen to it
        return answer

    async def _check(self, snapshot: Snapshot) -> None:
        if snapshot.model_version != self._service.model_version:
            raise ValueError(
                f"model_version {snapshot.model_version} is not the current one, "
                f"{self._service.model_version}"
            )
        at, found = snapshot.committed_id, None
        await self._service.catch_up()
        if 0 < at <= self._service.link.position:
            [found] = await self._service.store.entries(at - 1, limit=1)
        if found is None or found.digest.hex() != snapshot.digest:
            raise ValueError(
                "digest is not that of the entry at committed_id; is the snapshot of another log?"
            )
        TreeState.load(self._service.model, snapshot.state or {})

    async def _post_retention(self, request: HttpRequest) -> object:
        through = msgspec.json.decode(request.body, type=Retention).through
        answer = await self._service.link.reply(messages.Retain(through), messages.Retained)
        return {"archived": answer.archived}


def _named(name: str) -> str:
    """The normal form of a partition's name; `ValueError` if it is not one."""
    partition = normal_name(name)
    for fault in name_faults([partition]):
        raise ValueError(f"partition: {fault.message}")
    return partition
