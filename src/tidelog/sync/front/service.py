"""The front's half of sync: connections, subscriptions, pages and broadcasts.

It decides nothing and writes nothing: what the log is asked for, and what it says, crosses the link
(`tidelog.sync.messages`). Pages are read from the store.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelog.base.clock import Clock
from tidelog.base.data.incarnation import Incarnations
from tidelog.base.errors import (
    QueueFull,
    ShuttingDown,
    StoreError,
    TidelogError,
)
from tidelog.base.net.frame import PING, frame, text_frame
from tidelog.base.serving.surface import Conversation, Endpoint, Outlet, Upgrade
from tidelog.link.ends import FrontEnd
from tidelog.link.following import Following
from tidelog.link.message import Message, NotAsked, NotSent
from tidelog.store.engine import Store
from tidelog.sync import messages
from tidelog.sync.front.files import read_tokens
from tidelog.sync.front.snapshots import Part, stored_state
from tidelog.sync.messages import (
    Attach,
    Attached,
    Detach,
    Event,
    Events,
    Evict,
    Hello,
    Join,
    Joined,
    Left,
    ModelVersionChanged,
    NotTaken,
    Submitted,
    Welcome,
)
from tidelog.sync.protocol.actions import Action, Close, Connected, Ping, Send, Submit, Sync
from tidelog.sync.protocol.form import NATIVE, WireForm
from tidelog.sync.protocol.insieme.events import SEPARATOR, project_of
from tidelog.sync.protocol.insieme.form import InsiemeForm
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import CANONICAL, Model
from tidelog.sync.protocol.session import ApplicationRules, Session
from tidelog.sync.protocol.wire import AUTH_FAILED, SUPERSEDED, Committed, Page, Result, encode
from tidelog.sync.settings import SyncSettings

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

_NOT_TAKEN = (NotTaken, NotAsked, NotSent)

Subscribers = dict["_Connection", Callable[[Sequence[bytes]], None]]
"""Who gets the broadcasts of a partition, or of a project, and how."""


class SyncService:
    """The sockets of sync, on a link to the owner of the log and a store to read from."""

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        settings: SyncSettings,
        clock: Clock,
        model: Model,
        plugin: ApplicationRules | None,
    ) -> None:
        self.link = link
        self.store = store
        self.settings = settings
        self.clock = clock
        self.steady = asyncio.get_running_loop().time
        """Event-loop time."""
        self.model = model
        self.tokens = read_tokens(settings)
        self._plugin = plugin
        self.incarnations: Incarnations
        """Of the log; they do not change while this lives."""
        self.model_version = model.model_version
        """The one in use on all nodes."""
        self.last_event = 0
        """The last event of sync that came here: the watermark of a new cycle (sync D38)."""
        self.clients: dict[str, _Connection] = {}
        """Active connections by `client_id`: one each (sync 3.3). Those of insieme's dialect are
        not among them: two tabs of a browser share an id there (sync D72)."""
        self._open: set[_Connection] = set()
        self._numbers: dict[int, _Connection] = {}
        """Open connections by what the owner knows them by."""
        self._last_number = 0
        self._subscribers: dict[str, Subscribers] = {}
        self._in_projects: dict[str, Subscribers] = {}
        """Connections of insieme's dialect by their project."""
        self._followed = Following()
        """Partitions that somebody is subscribed to, or is about to be."""
        self._followed_projects = Following()
        self._origins: dict[int, _Connection] = {}
        """Who submitted an event that is about to come; it gets no broadcast of it."""
        self._sweep: asyncio.TimerHandle | None = None
        link.hear = self._heard

    @classmethod
    async def open(
        cls,
        link: FrontEnd,
        store: Store,
        settings: SyncSettings,
        clock: Clock,
        model: Model,
        plugin: ApplicationRules | None,
    ) -> "SyncService":
        """A service that follows the log.

        Raises:
            ConfigError: the owner of the log has other rules.
        """
        service = cls(link, store, settings, clock, model, plugin)
        hello = Hello(model.digest, settings.plugin)
        await link.reply(hello, Welcome, at_once=service._welcomed)
        return service

    def _welcomed(self, welcome: Welcome) -> None:
        self.incarnations = Incarnations(welcome.incarnations)
        self.model_version = welcome.model_version
        self.last_event = welcome.last_event
        self.link.passed(welcome.position)

    def _heard(self, message: Message) -> None:
        """What the owner says without being asked."""
        match message:
            case Events():
                self._deliver(message)
            case Evict(number):
                if connection := self._numbers.get(number):
                    connection.close(SUPERSEDED)
            case ModelVersionChanged(old, new):
                self._version_changed(old, new)

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        cap = self.settings.max_message_bytes * HARD_CAP_FACTOR
        failed = frozenset({AUTH_FAILED})
        return (
            Endpoint("/sync", self._accept, cap, heartbeat=False, unauthenticated_codes=failed),
        )

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

    def opened(self, connection: "_Connection") -> int:
        """Watch over a connection; returns its number."""
        self._open.add(connection)
        self._last_number += 1
        self._numbers[self._last_number] = connection
        if self._sweep is None:
            self._schedule_sweep()
        return self._last_number

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
        """Forget a connection and its subscriptions; again, nothing."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        del self._numbers[connection.number]
        self.subscribe(connection, ())
        if self.clients.get(connection.client_id) is connection:
            del self.clients[connection.client_id]
        if connection.client_id:
            self.link.tell(Left(connection.number))

    def subscribe(self, connection: "_Connection", partitions: Sequence[str]) -> None:
        """Replace the whole set of partitions that a connection gets broadcasts of.

        They were attached for it. For one of insieme's dialect these are projects. One that was
        closed in the meantime gets none, because nothing would remove it again.
        """
        is_project = bool(connection.session.project)
        by_name = self._in_projects if is_project else self._subscribers
        outlet = connection.outlet
        if outlet is None or connection.session.closed:
            self._leave(partitions, is_project=is_project)
            partitions = ()
        for name in connection.subscriptions:
            subscribers = by_name[name]
            del subscribers[connection]
            if not subscribers:
                del by_name[name]
        for name in partitions:
            assert outlet is not None  # noqa: S101 - or there are none
            push = connection.deliver if is_project else outlet.push_all
            by_name.setdefault(name, {})[connection] = push
        former, connection.subscriptions = connection.subscriptions, tuple(partitions)
        self._leave(former, is_project=is_project)

    def _leave(self, names: Sequence[str], *, is_project: bool) -> None:
        """Somebody does not want these any more: the owner is told what nobody wants."""
        if is_project:
            if gone := self._followed_projects.leave(names):
                self.link.tell(Detach(projects=gone))
        elif gone := self._followed.leave(names):
            self.link.tell(Detach(gone))

    def history(self, incarnation: str | None) -> dict[str, Any]:
        """Which history this is, and how much of it a client's `incarnation` has (sync 4.2)."""
        shared = self.incarnations.shared_with(incarnation)
        if shared is None:  # they share all of it, or it is unknown
            shared = 0 if incarnation is None else self.last_event
        return {"incarnation": self.incarnations.current.id, "began": shared}

    async def catch_up(self) -> None:
        """Return when what any node has acknowledged by now has come here."""
        await self.link.reply(Attach(), Attached, at_once=self._attached)

    def _attached(self, attached: Attached) -> None:
        self.link.passed(attached.position)

    async def connect(self, connection: "_Connection", action: Connected) -> None:
        """Register an authenticated client, and tell it so."""
        form = connection.session.form
        if isinstance(form, InsiemeForm):
            await self.catch_up()
            payload = form.connected(connection.client_id, self.last_event)
            connection.send("connected", payload, action.reply_to)
        elif not connection.session.closed:  # who has hung up by now supersedes nobody
            join = Join(connection.number, connection.client_id)
            await self.link.reply(join, Joined, at_once=partial(self._joined, connection, action))

    def _connected(self, connection: "_Connection", action: Connected) -> bytes:
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

    def _joined(self, connection: "_Connection", action: Connected, joined: Joined) -> None:
        """Of several connections of one client, the one with the latest claim stays (sync 3.3).

        It is told here: as soon as it is known, others send to it, and `connected` comes first.
        """
        self.link.passed(joined.position)
        if not joined.is_latest:
            connection.close(SUPERSEDED)
        elif not connection.session.closed:
            self.clients[connection.client_id] = connection
            connection.send("connected", self._connected(connection, action), action.reply_to)

    # Submit.

    async def commit(self, request: Submit) -> Sequence[Result]:
        """Commit what comes from no connection; returns when its events have come here too.

        Raises:
            QueueFull: there is no room.
            ShuttingDown: nothing is taken any more.
            Problem: the store failed. Earlier items may be committed. Or the items cannot be handed
                to the owner of the log, and none is.
        """
        answer = await self.link.answer(
            messages.Submit(request.items, request.size_bytes, request.stops_at_rejection)
        )
        if isinstance(answer, NotTaken | NotAsked):
            raise answer.raised()
        if isinstance(answer, NotSent):
            raise _not_sent(answer)
        if not isinstance(answer, Submitted):
            raise Problem("server_error", "internal error; retry all drafts")
        ids = [each.committed_id for each in answer.results if isinstance(each, Committed)]
        await self.link.reach(max(ids, default=0))
        return answer.results

    def note_origin(self, origin: "_Connection", results: Sequence[Result]) -> None:
        """Its new events come right after this; replays have come before."""
        for result in results:
            if isinstance(result, Committed) and result.committed_id > self.last_event:
                self._origins[result.committed_id] = origin

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
        if watermark is None or (connection is not None and request.subscriptions is not None):
            last_event = await self._attach(request, connection)
            watermark = last_event if watermark is None else watermark
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

    async def _attach(self, request: Sync, connection: "_Connection | None") -> int:
        """Catch up, and subscribe; returns the last event that came before."""
        is_project = bool(request.project)
        wanted = () if connection is None else request.subscriptions or ()
        new = (self._followed_projects if is_project else self._followed).want(wanted)
        last_event = 0

        def attached(answer: Attached) -> None:
            # In the same step: an event is up to the watermark, or it is broadcast (sync D39).
            nonlocal last_event, wanted
            self._attached(answer)
            last_event = self.last_event
            if connection is not None and request.subscriptions is not None:
                self.subscribe(connection, wanted)
                wanted = ()
                if is_project:
                    connection.hold()

        question = Attach(projects=new) if is_project else Attach(new)
        try:
            await self.link.reply(question, Attached, at_once=attached)
        finally:
            self._leave(wanted, is_project=is_project)
        return last_event

    async def _part(self, request: Sync, watermark: int) -> Part | None:
        """The state to start from, or a part of it; None where there are only events (sync D67)."""
        if request.snapshot is None:
            return None
        [partition] = request.partitions
        # Entries of other surfaces do not change a state, so it may include positions of theirs.
        last = self.link.position if watermark == self.last_event else watermark
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

    def _deliver(self, events: Events) -> None:
        origins = self._origins
        runs: list[tuple[Subscribers, _Connection | None, list[bytes]]] = []
        """Frames one after another for the same receivers but one: each is pushed them at once."""
        for event in events.events:
            origin = origins.pop(event.committed_id, None)
            receivers = self._receivers(event.partitions)
            if receivers:
                left_out = origin if origin in receivers else self._submitter(event, receivers)
                frame = _broadcast(event, NATIVE)
                if runs and runs[-1][0] is receivers and runs[-1][1] is left_out:
                    runs[-1][2].append(frame)
                else:
                    runs.append((receivers, left_out, [frame]))
            if self._in_projects:
                self._deliver_in_projects(event, origin)
        for receivers, left_out, frames in runs:
            for connection, push in receivers.items():
                if connection is not left_out:
                    push(frames)
        if origins:  # of events that nobody here follows
            for committed_id in [each for each in origins if each <= events.position]:
                del origins[committed_id]
        self.last_event = events.position
        self.link.passed(events.position)

    def _deliver_in_projects(self, event: Event, origin: "_Connection | None") -> None:
        for project in {project_of(name) for name in event.partitions}:
            if project is not None and (receivers := self._in_projects.get(project)):
                frame = _broadcast(event, InsiemeForm(project))
                for connection, push in receivers.items():
                    if connection is not origin:
                        push((frame,))

    def _receivers(self, partitions: Sequence[str]) -> "Subscribers":
        """Who is subscribed to any of the partitions, each once."""
        if len(partitions) == 1:
            return self._subscribers.get(partitions[0], {})
        receivers: Subscribers = {}
        for name in partitions:
            receivers |= self._subscribers.get(name, {})
        return receivers

    def _submitter(self, event: Event, receivers: "Subscribers") -> "_Connection | None":
        """Who of the receivers still waits for the answer to this very item, if somebody does.

        The items of a request with a poison item leave the tail before its answer (sync D29).
        """
        connection = self.clients.get(event.client_id)
        if connection is None or connection not in receivers:
            return None
        waiting = (item.id for request in connection.unanswered for item in request.items)
        return connection if event.id in waiting else None

    async def set_model_version(self, version: int) -> int:
        """Store a new model version and tell every client of the event profile; returns the old."""
        question = messages.ChangeModelVersion(version)
        return (await self.link.reply(question, messages.ModelVersionStored)).old

    def _version_changed(self, old: int, new: int) -> None:
        self.model_version = new
        payload = encode({"old_model_version": old, "new_model_version": new})
        for connection in tuple(self.clients.values()):
            if connection.session.profile == CANONICAL:
                connection.send("version_changed", payload)


def _broadcast(event: Event, form: WireForm) -> bytes:
    """The frame of an event for all who speak a form."""
    payload = form.delivered(event.body, event.committed_id, event.committed_at)
    message_id = f"b{event.committed_id}"
    return text_frame(form.envelope("event_broadcast", message_id, event.committed_at, payload))


def _not_sent(answer: NotSent) -> Problem:
    return Problem("bad_request", f"the message was not taken: {answer.text}")


class _Connection:
    """A `Conversation`: drives a session and does what it says."""

    def __init__(self, service: SyncService) -> None:
        self._service = service
        self.session = service.new_session(service.steady())
        self.subscriptions: tuple[str, ...] = ()
        self.number = 0
        """What the owner of the log knows it by, once it is open."""
        self.cursor = 0
        """Up to where the client was last sent a page."""
        self.unanswered: deque[Submit] = deque()
        """Submits that are being committed, in their order."""
        self.failed = False
        """Whether the store failed one of them: those after it fail too (sync D9)."""
        self._round = 0
        """See `messages.Submit.round`."""
        self.outlet: Outlet | None = None
        self._is_paused = False
        """Whether nothing is read from the peer, because the session is full."""
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
        self.number = self._service.opened(self)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        session = self.session
        was_known = session.claims is not None
        actions = session.receive(
            payload, is_text=is_text, now=self._service.steady(), unix_now=time.time()
        )
        if not was_known and session.claims is not None and self.outlet is not None:
            self.outlet.admit()  # at once: its first submit may follow without a pause
        self._act(actions)
        if session.is_full and self.outlet is not None:
            self._is_paused = True
            self.outlet.pause_reading()

    def closed(self, code: int) -> None:
        del code
        self.outlet = None
        self.session.closed = True
        self._service.closed(self)

    def look_after(self) -> None:
        """Time passed."""
        now = self._service.steady()
        # Whoever is not listened to cannot be heard.
        listens = self.outlet is not None and not self.session.is_full
        heard_at = self.outlet.heard_at if self.outlet is not None and listens else now
        self._act(self.session.due(now, time.time(), heard_at))

    def push(self, frame: bytes) -> None:
        if self.outlet is not None:
            self.outlet.push(frame)

    def deliver(self, frames: Sequence[bytes]) -> None:
        """Push broadcasts, or hold them."""
        for each in frames:
            if self._held is None:
                self.push(each)
            elif not self.holds_too_much:
                self._held.append(each)
                self._held_bytes += len(each)

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
        self.push(self._framed(kind, payload, reply_to, self._service.clock.now_ms()))

    def _framed(self, kind: str, payload: bytes, reply_to: str | None, now_ms: int) -> bytes:
        self._sent += 1
        msg_id = f"s{self._sent}" if reply_to is None else reply_to
        return text_frame(self.session.form.envelope(kind, msg_id, now_ms, payload))

    def tell(self, problem: Problem) -> None:
        """Something is wrong, and what was asked for goes on all the same."""
        self._act(self.session.refuse(problem))

    def close(self, code: int) -> None:
        self.session.closed = True
        self._service.closed(self)
        if self.outlet is not None:
            self.outlet.close(code)

    def _answered(self, request: Submit, answer: Message) -> None:
        """The result goes out before any event of the request does."""
        if isinstance(answer, _NOT_TAKEN):
            self._not_taken(request, answer)
            return
        unanswered = self.unanswered
        if unanswered and unanswered[0] is request:
            unanswered.popleft()
        else:
            # In order, but for a failure of one that the owner has not come to.
            places = (n for n, each in enumerate(unanswered) if each is request)
            if (place := next(places, None)) is None:
                return  # one before it was not taken, so this one is submitted again too
            del unanswered[place]
        if self.failed:
            return
        if isinstance(answer, Submitted):
            if self.subscriptions:
                self._service.note_origin(self, answer.results)
            now_ms = self._service.clock.now_ms()
            payload = self.session.form.results(request, answer.results, now_ms)
            self.push(self._framed("submit_events_result", payload, request.reply_to, now_ms))
            if next_ := self.session.answered(self._service.steady(), time.time()):
                self._act(next_)
        else:
            # The store failed. Earlier items may be committed, and nobody was told (sync D29).
            self.failed = True
            self._act(self.session.fail())

    def _not_taken(self, request: Submit, answer: NotTaken | NotAsked | NotSent) -> None:
        """It has to be tried again, or refused; so have those after it, which are not taken.

        What cannot be sent is tried again too: its refusal must not overtake the answers to those
        before it.
        """
        places = [n for n, each in enumerate(self.unanswered) if each is request]
        if not places:
            return  # one before it was not taken
        count = len(self.unanswered) - places[0]
        for _ in range(count):
            self.unanswered.pop()
        self._round += 1
        if not self.session.postponed(count):
            if isinstance(answer, NotSent):
                problem = _not_sent(answer)
                problem.reply_to = request.reply_to
                self._act(self.session.refuse(problem))
                self._done()
            else:
                self._refuse(answer.raised())

    def _done(self) -> None:
        self._act(self.session.done(self._service.steady(), time.time()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Submit():  # first, because most are
                    self._submit(action)
                case Send(kind, payload, reply_to):
                    self.send(kind, payload, reply_to)
                case Ping():
                    self.push(_PING)
                case Close(code):
                    self.close(code)
                case Connected() | Sync():
                    self._work = asyncio.create_task(self._do(action))
        if self._is_paused and self.outlet is not None and not self.session.is_full:
            self._is_paused = False
            self.outlet.resume_reading()

    def _submit(self, request: Submit) -> None:
        service, unanswered = self._service, self.unanswered
        unanswered.append(request)
        service.link.ask(
            messages.Submit(
                request.items,
                request.size_bytes,
                request.stops_at_rejection,
                self.number,
                self._round,
                bool(self.subscriptions),
            ),
            partial(self._answered, request),
        )
        if not unanswered or unanswered[-1] is not request:
            return  # it was not taken, and is told so
        if next_ := self.session.queued(service.steady(), time.time()):
            self._act(next_)

    def _refuse(self, error: TidelogError) -> None:
        self._act(self.session.busy(str(error)))
        self._done()

    async def _do(self, action: Connected | Sync) -> None:
        try:
            match action:
                case Connected():
                    await self._service.connect(self, action)
                    self._done()
                case Sync():
                    if self.outlet is not None:  # a page is made when the one before it is taken
                        await self.outlet.drained()
                    page = await self._service.page(action, self)
                    if self.outlet is not None:
                        now_ms = self._service.clock.now_ms()
                        framed = self._framed("sync_response", page, action.reply_to, now_ms)
                        self.outlet.answer(framed)
                    self.release()
                    self._done()
        except Problem as problem:
            self._service.subscribe(self, ())  # it has not caught up
            self.release()
            problem.reply_to = action.reply_to
            self._act(self.session.refuse(problem))
            self._done()
        except (QueueFull, ShuttingDown) as error:
            self._refuse(error)
        except StoreError as error:
            _log.warning("a sync request failed: %s", error)
            self._act(self.session.fail())
        except Exception:  # noqa: BLE001 - a mistake of ours must not leave the peer waiting
            _log.exception("a sync request failed")
            self._act(self.session.fail())
