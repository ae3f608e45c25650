"""The sync service: the only file of sync that touches both the log and connections."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidelog.base.clock import Clock
from tidelog.base.errors import (
    QueueFull,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    TidelogError,
)
from tidelog.base.net.frame import PING, frame, text_frame
from tidelog.base.serving.surface import Conversation, Endpoint, Outlet, Upgrade
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Item, Names
from tidelog.log.request import Submission
from tidelog.store.engine import Store
from tidelog.store.rows import Entry
from tidelog.sync.decide.plugin_guard import Clocks, GuardedPlugin
from tidelog.sync.decide.rules import STREAM, SURFACE, SubmitItem, in_sequence
from tidelog.sync.front.files import read_model, read_tokens
from tidelog.sync.front.other_nodes import OtherNodes
from tidelog.sync.front.snapshots import Part, stored_state
from tidelog.sync.metrics import SyncMetrics
from tidelog.sync.protocol.actions import Action, Close, Connected, Ping, Send, Submit, Sync
from tidelog.sync.protocol.form import NATIVE, WireForm
from tidelog.sync.protocol.insieme.events import SEPARATOR, project_of
from tidelog.sync.protocol.insieme.form import InsiemeForm
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import CANONICAL, Model
from tidelog.sync.protocol.session import Session
from tidelog.sync.protocol.wire import AUTH_FAILED, SUPERSEDED, Page, encode
from tidelog.sync.settings import SyncSettings
from tidelog.sync.upkeep.model_version import StoredModelVersion
from tidelog.sync.upkeep.state_cache import CachedState, StateCache

_log = logging.getLogger(__name__)

HARD_CAP_FACTOR = 4
"""Messages up to this many times the limit are answered, larger ones cut off (sync D1)."""

SWEEP_SECONDS = 0.25
"""How often timeouts are checked, and so how exact they are."""

MAX_PROJECT_PARTITIONS = 10_000
"""Partitions of a project that a client of insieme's dialect can be sent pages of: they are looked
up for each page, because it asks for the project and does not know them."""

MAX_HELD_BYTES = 1_048_576
"""Broadcasts that wait until a page of insieme's dialect was read and sent; with more of them the
client is told to ask for another page."""

_PING = frame(PING, b"")

Subscribers = dict["_Connection", Callable[[bytes], None]]
"""Who gets the broadcasts of a partition, or of a project, and how."""

Answered = Callable[[Sequence[Answer] | None], None]
"""Takes the answers of a submit; None if the store failed: how much was committed is unknown."""


class _Partitions(msgspec.Struct):
    partitions: list[str]


_decode_partitions = msgspec.json.Decoder(_Partitions).decode


def _wanted(request: Submit) -> list[str]:
    """Partitions whose tree state a decision of the request may look at."""
    return sorted({n for item in request.items if item.needs_state() for n in item.partitions})


def _with_states(item: PreparedItem, pinned: dict[str, CachedState]) -> SubmitItem:
    if not item.needs_state():
        return SubmitItem(item)
    return SubmitItem(item, tuple([pinned[name] for name in item.partitions]))


class _Request(Submission):
    """A submit in the committer's queue."""

    __slots__ = ("_origin", "_sequence")

    def __init__(
        self,
        names: Names,
        size_bytes: int,
        items: Sequence[SubmitItem],
        answered: Callable[[Sequence[Answer | Failure]], None],
        origin: "_Connection | None",
        *,
        stops_at_rejection: bool,
    ) -> None:
        super().__init__(names, size_bytes, items, answered)
        self._origin = origin
        self._sequence = items if stops_at_rejection else None

    def items(self) -> Sequence[Item]:
        """None, once an earlier request of the connection has failed (sync D9)."""
        if self._origin is not None and self._origin.failed:
            return ()
        return super().items() if self._sequence is None else in_sequence(self._sequence)


class SyncService:
    """The sockets of sync on a committer and a store."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: SyncSettings,
        clock: Clock,
        model: Model,
        *,
        model_version: int,
    ) -> None:
        self.settings = settings
        self.model = model
        self._version = StoredModelVersion(committer, store, model_version, self._version_changed)
        self.clock = clock
        self.tokens = read_tokens(settings)
        clocks = Clocks(time.perf_counter, time.thread_time)
        self._plugin = GuardedPlugin.from_settings(
            settings, committer.metrics.part(SyncMetrics), clocks
        )
        self.committer = committer
        self.store = store
        self.states = StateCache(store, committer.tail, model, settings, model_version)
        self.last_event = 0
        """The last sync event that the tail delivered: the watermark of a new cycle (sync D38)."""
        self.clients: dict[str, _Connection] = {}
        """Active connections by `client_id`: one each (sync 3.3). Those of insieme's dialect are
        not among them: two tabs of a browser share an id there (sync D72)."""
        self._open: set[_Connection] = set()
        self._subscribers: dict[str, Subscribers] = {}
        self._in_projects: dict[str, Subscribers] = {}
        """Connections of insieme's dialect by their project."""
        self._origins: dict[int, _Connection] = {}
        """Who submitted an entry that is about to leave the tail; it gets no broadcast of it."""
        self._sweep: asyncio.TimerHandle | None = None
        self._others = OtherNodes(
            committer.announcements,
            connected=self._connected_elsewhere,
            model_changed=self._version.follow,
        )
        committer.tail.subscribe(SURFACE, self._deliver)
        committer.restore_bodies(SURFACE, self._archived)

    @classmethod
    async def open(
        cls,
        committer: Committer,
        store: Store,
        settings: SyncSettings,
        clock: Clock,
    ) -> "SyncService":
        """A service whose watermark and model version are those of the store."""
        model = read_model(settings)
        version = await StoredModelVersion.stored(committer, store, model.model_version)
        service = cls(committer, store, settings, clock, model, model_version=version)
        # It follows the tail from here on; what other nodes commit meanwhile comes from there.
        for (last,) in await store.rows("sync_last_event", (committer.tail.position,)):
            service.last_event = max(service.last_event, last)
        return service

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        cap = self.settings.max_message_bytes * HARD_CAP_FACTOR
        failed = frozenset({AUTH_FAILED})
        return (
            Endpoint("/sync", self._accept, cap, heartbeat=False, unauthenticated_codes=failed),
        )

    @property
    def model_version(self) -> int:
        """The one in use on all nodes."""
        return self._version.current

    @property
    def announced_version(self) -> int | None:
        """In `connected` and `sync_response`, if the event profile is offered (sync D13)."""
        return self.model_version if CANONICAL in self.settings.profiles else None

    # Connections.

    def new_session(self, now: float) -> Session:
        """The server's end of a connection, or of one polling request."""
        return Session(self.settings, self.model, self.tokens, now, self._plugin)

    def _accept(self, upgrade: Upgrade) -> Conversation:
        del upgrade
        return _Connection(self)

    def opened(self, connection: "_Connection") -> None:
        """Watch over a connection."""
        self._open.add(connection)
        if self._sweep is None:
            self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        pause = min(SWEEP_SECONDS, self.settings.heartbeat_timeout_ms / 4000)
        self._sweep = asyncio.get_running_loop().call_later(pause, self._look_after)

    def _look_after(self) -> None:
        for connection in tuple(self._open):
            connection.look_after()
        self._sweep = None
        if self._open:
            self._schedule_sweep()

    def active(self) -> "list[_Connection]":
        """All connections after their handshake."""
        return [connection for connection in self._open if connection.client_id]

    def closed(self, connection: "_Connection") -> None:
        """Forget a connection and its subscriptions."""
        self._open.discard(connection)
        self.subscribe(connection, ())
        if self.clients.get(connection.client_id) is connection:
            del self.clients[connection.client_id]

    def subscribe(self, connection: "_Connection", partitions: Sequence[str]) -> None:
        """Replace the whole set of partitions that a connection gets broadcasts of.

        For one of insieme's dialect these are projects. One that was closed in the meantime gets
        none, because nothing would remove it again.
        """
        by_name = self._in_projects if connection.session.project else self._subscribers
        outlet = connection.outlet
        if outlet is None or connection.session.closed:
            partitions = ()
        for name in connection.subscriptions:
            subscribers = by_name[name]
            del subscribers[connection]
            if not subscribers:
                del by_name[name]
        for name in partitions:
            assert outlet is not None  # noqa: S101 - or there are none
            push = connection.deliver if connection.session.project else outlet.push
            by_name.setdefault(name, {})[connection] = push
        connection.subscriptions = tuple(partitions)

    def history(self, incarnation: str | None) -> dict[str, Any]:
        """Which history this is, and how much of it a client's `incarnation` has (sync 4.2)."""
        incarnations = self.committer.incarnations
        shared = incarnations.shared_with(incarnation)
        if shared is None:  # they share all of it, or it is unknown
            shared = 0 if incarnation is None else self.last_event
        return {"incarnation": incarnations.current.id, "began": shared}

    async def connect(self, connection: "_Connection", action: Connected) -> bytes:
        """Register an authenticated client; returns the payload of `connected`."""
        # What another node has acknowledged to this client must not be missing here.
        await self.committer.catch_up()
        form = connection.session.form
        if isinstance(form, InsiemeForm):
            return form.connected(connection.client_id, self.last_event)
        if not connection.session.closed:  # who has hung up by now supersedes nobody
            connection.claim = await self._others.claim(connection.client_id)
        if not connection.session.closed:
            self._take_over(connection)
        settings = self.settings
        payload = {
            "client_id": connection.client_id,
            "server_time": self.clock.now_ms(),
            "server_last_committed_id": self.last_event,
            **self.history(action.incarnation),
            "capabilities": action.capabilities,
            "limits": {
                "max_batch_size": settings.batch_size,
                "sync_limit_min": settings.sync_limit_min,
                "sync_limit_max": settings.sync_limit_max,
                "max_message_bytes": settings.max_message_bytes,
                "max_in_flight_drafts": settings.max_in_flight_drafts,
                "heartbeat_timeout_ms": settings.heartbeat_timeout_ms,
            },
        }
        if self.announced_version is not None:
            payload["model_version"] = self.announced_version
        return encode(payload)

    def _take_over(self, connection: "_Connection") -> None:
        """Of several connections of one client, the one with the latest claim stays (sync 3.3)."""
        client_id, claim = connection.client_id, connection.claim
        older = self.clients.get(client_id)
        if self._others.has_later_claim(client_id, claim) or (older and older.claim > claim):
            connection.close(SUPERSEDED)
            return
        if older is not None:
            older.close(SUPERSEDED)
        self.clients[client_id] = connection

    def _connected_elsewhere(self, client_id: str, claim: int) -> None:
        connection = self.clients.get(client_id)
        if connection is not None and connection.claim < claim:
            connection.close(SUPERSEDED)

    # Submit.

    def submit(self, request: Submit, answered: Answered, origin: "_Connection | None") -> bool:
        """Queue a request whose states are warm; False if they are not: `warm_and_submit` then.

        Raises:
            QueueFull: see `Committer.submit`.
            ShuttingDown: see `Committer.submit`.
        """
        pinned = self.states.pin_ready(_wanted(request))
        if pinned is None:
            return False
        self._queue(request, pinned, answered, origin)
        return True

    async def warm_and_submit(
        self, request: Submit, answered: Answered, origin: "_Connection | None"
    ) -> None:
        """Load the states that decisions may look at, then queue the request."""
        pinned = await self.states.pin(_wanted(request))
        self._queue(request, pinned, answered, origin)

    def _queue(
        self,
        request: Submit,
        pinned: dict[str, CachedState],
        answered: Answered,
        origin: "_Connection | None",
    ) -> None:
        if pinned:
            items = [_with_states(item, pinned) for item in request.items]
        else:
            items = [SubmitItem(item) for item in request.items]

        def hand_over(answers: Sequence[Answer | Failure]) -> None:
            self.states.unpin(pinned)
            if any(isinstance(answer, Failure) for answer in answers):
                answered(None)
                return
            if origin is not None:
                self._note_origin(origin, answers)
            answered(answers)

        names = Names(tuple([item.key for item in items if not item.prepared.refused]), (STREAM,))
        try:
            self.committer.submit(
                _Request(
                    names,
                    request.size_bytes,
                    items,
                    hand_over,
                    origin,
                    stops_at_rejection=request.stops_at_rejection,
                )
            )
        except BaseException:
            self.states.unpin(pinned)
            raise

    def _note_origin(self, origin: "_Connection", answers: Sequence[Answer]) -> None:
        """Its new entries leave the tail right after this; replays have none."""
        position = self.committer.tail.position
        for answer in answers:
            if answer.status == "committed" and answer.committed_id > position:
                self._origins[answer.committed_id] = origin

    # Sync.

    async def page(
        self,
        request: Sync,
        connection: "_Connection | None" = None,
        history: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Read one page; the watermark and the subscriptions are taken in one step (sync D39)."""
        form = NATIVE if connection is None else connection.session.form
        watermark = request.watermark
        if watermark is None:
            await self.committer.catch_up()
            watermark = self.last_event
        # No await between these two: an event is up to the watermark, or it is broadcast.
        if connection is not None and request.subscriptions is not None:
            self.subscribe(connection, request.subscriptions)
            if request.project:
                connection.hold()
        more = dict(history or {})
        if request.since > watermark:
            events: list[bytes] = []
            next_since, has_more = watermark, False
            if connection is not None and (problem := form.beyond_the_log(request)):
                connection.tell(problem)
        elif part := await self._part(request, watermark):
            events, more = [], more | part.members()
            next_since, has_more = await self._after_part(request, part, watermark)
        else:
            events, next_since, has_more = await self._read_page(request, watermark, form)
        if connection is not None and request.project:
            has_more = has_more or connection.holds_too_much
            if has_more:  # the next page has what was held, and comes before what follows
                self.subscribe(connection, ())
        if connection is not None:
            connection.session.paged(request, next_since, watermark, has_more=has_more)
            connection.cursor = next_since
        subscriptions = () if connection is None else connection.subscriptions
        found = Page(
            events, next_since, watermark, has_more, subscriptions, self.announced_version, more
        )
        return form.page(request, found)

    async def _part(self, request: Sync, watermark: int) -> Part | None:
        """The state to start from, or a part of it; None where there are only events (sync D67)."""
        if request.snapshot is None:
            return None
        [partition] = request.partitions
        # Entries of other surfaces do not change a state, so it may include positions of theirs.
        last = self.committer.tail.position if watermark == self.last_event else watermark
        state = await stored_state(self.store, partition, self.model_version, through=last)
        if state is None:
            return None
        return state.as_of(watermark).part(request.snapshot, request.max_bytes)

    async def _after_part(self, request: Sync, part: Part, watermark: int) -> tuple[int, bool]:
        """Where to continue after a part, and whether more follows (sync D35, D36)."""
        if part.next is not None:
            return request.since, True
        after = part.committed_id
        found = await self.store.lowest(
            "sync_positions", request.partitions, after=after, through=watermark, limit=1
        )
        return (after, True) if found else (watermark, False)

    async def _partitions(self, request: Sync) -> Sequence[str]:
        """The partitions that a page is of.

        Raises:
            Problem: there are too many of them.
        """
        if not request.project:
            return request.partitions
        first = request.project + SEPARATOR
        beyond = request.project + chr(ord(SEPARATOR) + 1)
        rows = await self.store.rows(
            "sync_partitions_between", (first, beyond, MAX_PROJECT_PARTITIONS + 1)
        )
        if len(rows) > MAX_PROJECT_PARTITIONS:
            raise Problem(
                "bad_request",
                f"projectId: the project has more than {MAX_PROJECT_PARTITIONS} partitions; divide "
                "it, or sync them by name in the server's own protocol",
            )
        return [name for (name,) in rows]

    async def _read_page(
        self, request: Sync, watermark: int, form: WireForm
    ) -> tuple[list[bytes], int, bool]:
        """The next events of any of the partitions, and whether there are more (sync D35).

        At most `limit`, and of these as many as `max_bytes` have room for; at least one.
        """
        limit = request.limit
        ids = await self.store.lowest(
            "sync_positions",
            await self._partitions(request),
            after=request.since,
            through=watermark,
            limit=limit + 1,
        )
        found = await self.store.rows_within(
            "sync_event", ids[:limit], most_bytes=request.max_bytes
        )
        events = [form.delivered(body, at, committed_at) for at, committed_at, body in found]
        has_more = len(ids) > len(found)
        return events, found[-1][0] if has_more else watermark, has_more

    # Delivery.

    async def _archived(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Bodies that retention on another node moved to the archive before they came here."""
        found = await self.store.rows_of("sync_archived", [(each,) for each in ids])
        if not all(found):
            lost = [each for each, rows in zip(ids, found, strict=True) if not rows]
            raise StoreDamaged(f"events {lost[:10]} are neither in the log nor in the archive")
        return {each: rows[0][0] for each, rows in zip(ids, found, strict=True)}

    def _deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.last_event = entry.committed_id
            origin = self._origins.pop(entry.committed_id, None) or self._submitter(entry)
            assert entry.body is not None  # noqa: S101 - new, or restored by `_archived`
            partitions = _decode_partitions(entry.body).partitions
            self.states.follow(entry, partitions)
            _broadcast(entry, NATIVE, self._receivers(partitions), origin)
            if self._in_projects:
                for project in {project_of(name) for name in partitions}:
                    if project is not None:
                        receivers = self._in_projects.get(project, {})
                        _broadcast(entry, InsiemeForm(project), receivers, origin)

    def _receivers(self, partitions: Sequence[str]) -> "Subscribers":
        """Who is subscribed to any of the partitions, each once."""
        if len(partitions) == 1:
            return self._subscribers.get(partitions[0], {})
        receivers: Subscribers = {}
        for name in partitions:
            receivers |= self._subscribers.get(name, {})
        return receivers

    def _submitter(self, entry: Entry) -> "_Connection | None":
        """Who still waits for the answer to this very item, if somebody does.

        The items of a request with a poison item leave the tail before its answer (sync D29).
        """
        connection = self.clients.get(entry.actor)
        if connection is None:
            return None
        waiting = (item.id for request in connection.unanswered for item in request.items)
        return connection if entry.entity in waiting else None

    async def set_model_version(self, version: int) -> int:
        """Store a new model version and tell every client of the event profile; returns the old."""
        old = await self._version.change(version)
        await self._others.tell_model_version()
        return old

    def _version_changed(self, old: int, new: int) -> None:
        self.states.model_version = new
        payload = encode({"old_model_version": old, "new_model_version": new})
        for connection in tuple(self.clients.values()):
            if connection.session.profile == CANONICAL:
                connection.send("version_changed", payload)


def _broadcast(
    entry: Entry, form: WireForm, receivers: Subscribers, origin: "_Connection | None"
) -> None:
    """Encode an event once in a form, and push it to all that speak it; not to its origin."""
    if not receivers:
        return
    assert entry.body is not None  # noqa: S101 - new, or restored by `_archived`
    payload = form.delivered(entry.body, entry.committed_id, entry.committed_at)
    message_id = f"b{entry.committed_id}"
    encoded = text_frame(form.envelope("event_broadcast", message_id, entry.committed_at, payload))
    for connection, push in receivers.items():
        if connection is not origin:
            push(encoded)


class _Connection:
    """A `Conversation`: drives a session and does what it says."""

    def __init__(self, service: SyncService) -> None:
        self._service = service
        now = asyncio.get_running_loop().time()
        self.session = service.new_session(now)
        self.subscriptions: tuple[str, ...] = ()
        self.claim = 0
        """Tells which of a client's connections is the latest; see `OtherNodes`."""
        self.cursor = 0
        """Up to where the client was last sent a page."""
        self.unanswered: deque[Submit] = deque()
        """Submits that are being committed, in their order."""
        self.failed = False
        """Whether the store failed one of them: those after it must not be committed (sync D9)."""
        self.outlet: Outlet | None = None
        self._held: list[bytes] | None = None
        """Broadcasts that a page must come before; None if they need not wait."""
        self._held_bytes = 0
        self._sent = 0
        self._work: asyncio.Task[None] | None = None

    @property
    def client_id(self) -> str:
        """Authenticated id; empty before the handshake."""
        return self.session.claims.client_id if self.session.claims else ""

    def opened(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self._service.opened(self)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        now = asyncio.get_running_loop().time()
        was_known = self.session.claims is not None
        actions = self.session.receive(payload, is_text=is_text, now=now, unix_now=time.time())
        if self.outlet is not None and self.session.claims is not None and not was_known:
            self.outlet.admit()  # at once: its first submit may follow without a pause
        self._act(actions)
        if self.outlet is not None and self.session.is_full:
            self.outlet.pause_reading()

    def closed(self, code: int) -> None:
        del code
        self.outlet = None
        self.session.closed = True
        self._service.closed(self)

    def look_after(self) -> None:
        """Time passed."""
        now = asyncio.get_running_loop().time()
        # Whoever is not listened to cannot be heard.
        listens = self.outlet is not None and not self.session.is_full
        heard_at = self.outlet.heard_at if self.outlet is not None and listens else now
        self._act(self.session.due(now, time.time(), heard_at))

    def push(self, frame: bytes) -> None:
        if self.outlet is not None:
            self.outlet.push(frame)

    def deliver(self, frame: bytes) -> None:
        """Push a broadcast, or hold it."""
        if self._held is None:
            self.push(frame)
        elif not self.holds_too_much:
            self._held.append(frame)
            self._held_bytes += len(frame)

    def hold(self) -> None:
        """Keep broadcasts back until `release`: the page that is being read comes first."""
        self._held, self._held_bytes = [], 0

    @property
    def holds_too_much(self) -> bool:
        """Whether broadcasts were not held for want of room."""
        return self._held_bytes > MAX_HELD_BYTES

    def release(self) -> None:
        """Push what was held, if it is still subscribed to."""
        held, self._held, self._held_bytes = self._held, None, 0
        if self.subscriptions:
            for each in held or ():
                self.push(each)

    def send(self, kind: str, payload: bytes, reply_to: str | None = None) -> None:
        """Send a message of this connection's own."""
        self.push(self._framed(kind, payload, reply_to))

    def _framed(self, kind: str, payload: bytes, reply_to: str | None) -> bytes:
        self._sent += 1
        msg_id = f"s{self._sent}" if reply_to is None else reply_to
        now_ms = self._service.clock.now_ms()
        return text_frame(self.session.form.envelope(kind, msg_id, now_ms, payload))

    def tell(self, problem: Problem) -> None:
        """Something is wrong, and what was asked for goes on all the same."""
        self._act(self.session.refuse(problem))

    def close(self, code: int) -> None:
        self.session.closed = True
        self._service.closed(self)
        if self.outlet is not None:
            self.outlet.close(code)

    def submitted(self, answers: Sequence[Answer] | None) -> None:
        """The result goes out before any entry of the request does.

        None: the store failed. Earlier items may be committed, and nobody was told (sync D29).
        """
        request = self.unanswered.popleft()
        if self.failed:
            return
        if answers is None:
            self.failed = True
            self._act(self.session.fail())
        else:
            now_ms = self._service.clock.now_ms()
            payload = self.session.form.results(request, answers, now_ms)
            self.send("submit_events_result", payload, request.reply_to)
            now = asyncio.get_running_loop().time()
            self._act(self.session.answered(now, time.time()))

    def _queued(self) -> None:
        now = asyncio.get_running_loop().time()
        self._act(self.session.queued(now, time.time()))

    def _done(self) -> None:
        now = asyncio.get_running_loop().time()
        self._act(self.session.done(now, time.time()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(kind, payload, reply_to):
                    self.send(kind, payload, reply_to)
                case Ping():
                    self.push(_PING)
                case Close(code):
                    self.close(code)
                case Submit():
                    self._submit(action)
                case _:
                    self._work = asyncio.create_task(self._do(action))
        if self.outlet is not None and not self.session.is_full:
            self.outlet.resume_reading()

    def _submit(self, request: Submit) -> None:
        """At once if all states are warm, the usual case; else in a task that warms them."""
        self.unanswered.append(request)
        try:
            if self._service.submit(request, self.submitted, self):
                self._queued()
            else:
                self._work = asyncio.create_task(self._do(request))
        except (QueueFull, ShuttingDown) as error:
            self._busy(request, error)

    def _busy(self, action: Action, error: TidelogError) -> None:
        if isinstance(action, Submit):
            self.unanswered.pop()
            if self.session.postponed():
                return
        self._act(self.session.busy(str(error)))
        self._done()

    async def _do(self, action: Connected | Submit | Sync) -> None:
        try:
            match action:
                case Connected():
                    payload = await self._service.connect(self, action)
                    self.send("connected", payload, action.reply_to)
                    self._done()
                case Submit():
                    await self._service.warm_and_submit(action, self.submitted, self)
                    self._queued()
                case Sync():
                    if self.outlet is not None:  # a page is made when the one before it is taken
                        await self.outlet.drained()
                    page = await self._service.page(action, self)
                    if self.outlet is not None:
                        self.outlet.answer(self._framed("sync_response", page, action.reply_to))
                    self.release()
                    self._done()
        except Problem as problem:
            self._service.subscribe(self, ())  # it has not caught up
            self.release()
            problem.reply_to = action.reply_to
            self._act(self.session.refuse(problem))
            self._done()
        except (QueueFull, ShuttingDown) as error:
            self._busy(action, error)
        except StoreError as error:
            _log.warning("a sync request failed: %s", error)
            self._act(self.session.fail())
        except Exception:  # noqa: BLE001 - a mistake of ours must not leave the peer waiting
            _log.exception("a sync request failed")
            self._act(self.session.fail())
