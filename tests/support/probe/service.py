"""The probe's service: the only file of it that touches both the log and connections."""

import asyncio
import logging
from collections.abc import Sequence
from urllib.parse import parse_qs

from msgspec import DecodeError, Raw, ValidationError

from support.probe.rules import (
    STATE,
    SURFACE,
    PruneItem,
    PutItem,
    log_stream,
    prepare_put,
    stream_state,
)
from support.probe.session import Action, Ask, Attach, Reply, Session
from support.probe.wire import (
    MAX_MESSAGE_BYTES,
    EntryMessage,
    Error,
    PutResult,
    Subscribed,
    decode_body,
    decode_prune,
    decode_put,
    encode,
)
from tidelog.base.errors import (
    DataError,
    InvalidJson,
    NotCanonicalizable,
    QueueFull,
    ShuttingDown,
    StoreUnavailable,
)
from tidelog.base.net.frame import text_frame
from tidelog.base.serving.surface import (
    Admit,
    Conversation,
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Outlet,
    Route,
    Upgrade,
    guarded,
)
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure
from tidelog.log.request import Submission, submit_and_wait
from tidelog.log.retention import PRUNE_ENTRIES
from tidelog.store.engine import Store
from tidelog.store.grouping import Touch
from tidelog.store.rows import Entry
from tidelog.store.schema import Extension, packaged

VARIABLE = "TIDELOG_TEST_PROBE"
"""Set to 0, it leaves this surface out of a server that a test starts."""

UNLISTED = "TIDELOG_TEST_PROBE_UNLISTED"
"""Set, a server process does not tell the store what this surface's statement touches: on
PostgreSQL it is then a statement of its own, in a transaction that COMMIT ends."""

ATTACH_ENTRIES = 256
"""Stored entries sent before the socket is waited for; well below what makes a slow consumer."""

ATTACH_BYTES = 65_536
"""Likewise in bytes."""

HELD_FRAMES = 10_000
"""Live entries held for one connection while it is sent stored ones; a reader that much slower than
the writers is closed and attaches again from where it got to."""

_log = logging.getLogger(__name__)

EXTENSION = Extension(
    queries=packaged("support.probe").queries,
    tables={
        engine: f"""CREATE TABLE IF NOT EXISTS probe_stream (
            stream TEXT PRIMARY KEY, puts {integer} NOT NULL, weight {integer} NOT NULL,
            last_committed_id {integer} NOT NULL);"""
        for engine, integer in (("sqlite", "INTEGER"), ("postgresql", "BIGINT"))
    },
    touches={"put_probe_stream": Touch("probe_stream", slice(0, 1), may_repeat=True)},
)

_STATUS_CODES = {"committed": 201, "duplicate": 200, "conflict": 409, "refused": 422, "failed": 503}

_BAD_REQUEST = (
    DecodeError,
    ValidationError,
    InvalidJson,
    NotCanonicalizable,
    RecursionError,
    ValueError,
)


def _admit(handle: Handle) -> Admit:
    """Everybody: the probe has no secrets, and is for tests of what happens behind them."""

    async def admit(request: HttpRequest) -> Handle:
        del request
        return handle

    return admit


class ProbeService:
    """Mounts the probe on a committer and a store."""

    name = SURFACE

    def __init__(self, committer: Committer, store: Store) -> None:
        self._committer = committer
        self._store = store
        self._subscribers: dict[str, set[_Connection]] = {}
        committer.tail.subscribe(SURFACE, self._deliver)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        return (
            guarded("POST", "/probe/entries", _admit(self._post_entry)),
            Route("GET", "/probe/streams/{stream}", self._get_state),
            Route("GET", "/probe/streams/{stream}/entries", self._get_entries),
            guarded("POST", "/probe/streams/{stream}/prune", _admit(self._post_prune)),
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return (Endpoint("/probe/ws", self._accept, MAX_MESSAGE_BYTES),)

    async def _post_entry(self, request: HttpRequest) -> HttpResponse:
        try:
            item = prepare_put(decode_put(request.body))
        except _BAD_REQUEST as error:
            return _problem(400, "bad_request", str(error)[:200])
        try:
            [answer] = await submit_and_wait(
                self._committer, item.names(), len(request.body), (item,)
            )
        except (QueueFull, ShuttingDown) as error:
            return _problem(503, "busy", str(error), retry_after=1)
        result = _put_result(item, answer)
        retry_is_useless = isinstance(answer, Failure) and isinstance(answer.error, DataError)
        status = 500 if retry_is_useless else _STATUS_CODES[result.status]
        return HttpResponse(status, encode(result))

    async def _get_state(self, request: HttpRequest) -> HttpResponse:
        stream = request.params["stream"]
        rows = await self._store.rows(STATE, (stream,))
        return HttpResponse(200, encode(stream_state(stream, rows)))

    async def _get_entries(self, request: HttpRequest) -> HttpResponse:
        try:
            query = parse_qs(request.query_string.decode("ascii"), strict_parsing=False)
            after, limit = int(query.get("after", ["0"])[0]), int(query.get("limit", ["100"])[0])
        except _BAD_REQUEST:
            return _problem(400, "bad_request", "after and limit are numbers")
        stream = log_stream(request.params["stream"])
        entries = await self._store.stream_entries(stream, after, limit=max(0, limit))
        return HttpResponse(200, encode([_entry_message(entry) for entry in entries]))

    async def _post_prune(self, request: HttpRequest) -> HttpResponse:
        try:
            through = decode_prune(request.body).through
        except _BAD_REQUEST as error:
            return _problem(400, "bad_request", str(error)[:200])
        stream = request.params["stream"]
        after = max(0, through - PRUNE_ENTRIES)
        entries = await self._store.stream_entries(log_stream(stream), after, limit=through - after)
        item = PruneItem(stream, after, through, tuple(entry.entity for entry in entries))
        try:
            [answer] = await submit_and_wait(self._committer, item.names(), 64, (item,))
        except (QueueFull, ShuttingDown) as error:
            return _problem(503, "busy", str(error), retry_after=1)
        if isinstance(answer, Failure):
            return _problem(503, "failed", str(answer.error))
        return HttpResponse(422 if answer.reason else 200, encode(answer))

    def _accept(self, upgrade: Upgrade) -> Conversation:
        del upgrade
        return _Connection(self)

    def submit(self, item: PutItem, connection: "_Connection") -> None:
        """Submit for a connection, or answer its backpressure at once."""

        def answered(answers: Sequence[Answer | Failure]) -> None:
            connection.answered(_put_result(item, answers[0]))

        try:
            self._committer.submit(Submission(item.names(), len(item.body), (item,), answered))
        except (QueueFull, ShuttingDown) as error:
            connection.answered(PutResult(item.key, "failed", reason=str(error)))

    async def attach(self, connection: "_Connection", stream: str, after: int) -> None:
        """Send what is stored, then what is live: no gap, nothing twice."""
        await self._committer.catch_up()
        if connection.is_closed:
            return
        position = self._committer.tail.position
        self._subscribers.setdefault(stream, set()).add(connection)
        connection.hold(stream, position)
        name = log_stream(stream)
        while page := await self._store.stream_entries(name, after, limit=ATTACH_ENTRIES):
            pushed = 0
            for entry in page:
                if entry.committed_id <= position:
                    frame = entry_frame(entry)
                    connection.push(frame)
                    pushed += len(frame)
                    if pushed > ATTACH_BYTES:
                        await connection.drained()
                        pushed = 0
            await connection.drained()
            after = page[-1].stream_serial
            if page[-1].committed_id >= position:
                break
        connection.release(stream)

    def detach(self, connection: "_Connection", streams: Sequence[str]) -> None:
        """Forget a connection."""
        for stream in streams:
            subscribers = self._subscribers.get(stream, set())
            subscribers.discard(connection)
            if not subscribers:
                self._subscribers.pop(stream, None)

    def _deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            stream = entry.stream.removeprefix("probe/")
            subscribers = self._subscribers.get(stream)
            if subscribers:
                frame = entry_frame(entry)
                for connection in subscribers:
                    connection.deliver(stream, frame)


class _Connection:
    """A `Conversation`: drives a session and does what it says."""

    def __init__(self, service: ProbeService) -> None:
        self._service = service
        self._session = Session()
        self._outlet: Outlet | None = None
        self._held: dict[str, list[bytes] | None] = {}
        """Streams this connection is subscribed to; the list holds live frames while attaching."""
        self._attaching: asyncio.Task[None] | None = None

    def opened(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def received(self, payload: bytes, *, is_text: bool) -> None:
        del is_text
        self._act(self._session.receive(payload))
        if self._outlet is not None and self._session.is_full:
            self._outlet.pause_reading()

    def closed(self, code: int) -> None:
        del code
        self._outlet = None
        if self._attaching is not None:
            self._attaching.cancel()
        self._service.detach(self, tuple(self._held))

    @property
    def is_closed(self) -> bool:
        """Whether the peer is gone."""
        return self._outlet is None

    async def drained(self) -> None:
        """Return when the peer has taken what was pushed."""
        if self._outlet is not None:
            await self._outlet.drained()

    def push(self, frame: bytes) -> None:
        if self._outlet is not None:
            self._outlet.push(frame)

    def hold(self, stream: str, position: int) -> None:
        """Subscribed as of `position`: collect live frames until `release`."""
        self._held[stream] = []
        self.push(text_frame(encode(Subscribed(stream, position))))

    def release(self, stream: str) -> None:
        for frame in self._held[stream] or ():
            self.push(frame)
        self._held[stream] = None

    def deliver(self, stream: str, frame: bytes) -> None:
        held = self._held.get(stream)
        if held is None:
            self.push(frame)
        elif len(held) < HELD_FRAMES:
            held.append(frame)
        elif self._outlet is not None:
            self._outlet.close(1013, "too far behind; attach again")

    def answered(self, result: PutResult) -> None:
        self.push(text_frame(encode(result)))
        self._act(self._session.done())

    def _act(self, actions: list[Action]) -> None:
        if self._outlet is None:
            return  # what a peer that is gone still had in its inbox is not worked on
        for action in actions:
            match action:
                case Reply(payload):
                    self.push(text_frame(payload))
                case Ask(item):
                    self._service.submit(item, self)
                case Attach(stream, after):
                    self._attaching = asyncio.create_task(self._attach(stream, after))
        self._resume()

    def _resume(self) -> None:
        if self._outlet is not None and not self._session.is_full:
            self._outlet.resume_reading()

    async def _attach(self, stream: str, after: int) -> None:
        try:
            await self._service.attach(self, stream, after)
        except (StoreUnavailable, ShuttingDown) as error:
            _log.warning("could not attach: %s", error)
            if self._outlet is not None:
                self._outlet.close(1011, "the log could not be read; attach again")
            return
        self._act(self._session.done())


def entry_frame(entry: Entry) -> bytes:
    """One entry as a frame, encoded once for all of its receivers."""
    return text_frame(encode(_entry_message(entry)))


def _entry_message(entry: Entry) -> EntryMessage:
    return EntryMessage(
        entry.committed_id,
        entry.stream.removeprefix("probe/"),
        entry.stream_serial,
        entry.entity,
        Raw(b"null") if entry.body is None else decode_body(entry.body).value,
        entry.committed_at,
    )


def _put_result(item: PutItem, answer: Answer | Failure) -> PutResult:
    if isinstance(answer, Failure):
        return PutResult(item.key, "failed", reason=str(answer.error))
    assert isinstance(answer, PutResult)
    return answer


def _problem(status: int, code: str, message: str, retry_after: int | None = None) -> HttpResponse:
    headers = () if retry_after is None else ((b"retry-after", b"%d" % retry_after),)
    return HttpResponse(status, encode(Error(code, message)), headers=headers)
