"""One sync connection as a state machine: messages in, actions out; no sockets, no sleeping.

Messages are checked in the order of sync 1; the first failure decides what is returned. They are
processed strictly one after another, in the order they came (sync D9).

Once a submit is in the committer's queue its turn is fixed, so further submits may follow it there
before it is answered. Whatever else comes after it waits for its answer.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.sync.plugin import Access
from tidelog.sync.protocol.actions import (
    Action,
    Close,
    Connected,
    Ping,
    Send,
    SnapshotWish,
    Submit,
    Sync,
)
from tidelog.sync.protocol.form import NATIVE, WireForm
from tidelog.sync.protocol.insieme import messages as insieme
from tidelog.sync.protocol.insieme.events import SEPARATOR
from tidelog.sync.protocol.insieme.form import InsiemeForm
from tidelog.sync.protocol.items import Preparation, PreparedItem, prepare
from tidelog.sync.protocol.partitions import name_faults, normal_set
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, Model, accepted_types
from tidelog.sync.protocol.submitted import PlainSubmit, plain_submit, prepared_items
from tidelog.sync.protocol.tokens import Claims, TokenRefused, Tokens
from tidelog.sync.protocol.wire import (
    CLIENT_TYPES,
    CLOSE_CODES,
    HEARTBEAT_TIMEOUT,
    MAX_ID_BYTES,
    NORMAL,
    PROJECT_FORBIDDEN,
    SUPPORTED_VERSIONS,
)
from tidelog.sync.settings import SyncSettings

INBOX_MESSAGES = 32
INBOX_BYTES = 1_048_576
"""Messages held while one is processed; beyond that, reading from the socket pauses. A message may
be four megabytes, and a peer that does not read its answers could make us hold 32 of them."""

QUEUED_MESSAGES = 16
QUEUED_BYTES = 65_536
"""Submits of one connection that wait for the committer together; a larger one waits there alone.
All connections share the queue, so none may fill it."""

DEFAULT_LIMIT = 500
MAX_PAGE_BYTES = 1_048_576
"""The most that the events of a page add up to, unless a single one is larger: a page is held in
memory until the peer has taken it, and must get there over a slow line before the peer gives up."""
RETRY_AFTER_MS = 1000

_VERSION = re.compile(r"[0-9]+\.[0-9]+")


PINGS_PER_TIMEOUT = 3
"""How often a peer that sends no heartbeats is pinged before it counts as gone."""

INSIEME = "insieme"
"""What a connection of that dialect has instead of a profile: each event tells its own."""

_WORK = (Submit, Connected, Sync)
"""Actions whose end the service reports, by `done` or `queued`."""


class Cycle(Struct, frozen=True):
    """A sync cycle with more pages to come (sync D37)."""

    partitions: tuple[str, ...]
    next_since: int
    watermark: int


class ApplicationRules(Protocol):
    """What the application's plug-in adds to the rules of the protocol."""

    def restrict(self, claims: Claims, access: Access) -> Callable[[str], bool]:
        """Which partitions are allowed by the token and the plug-in both (sync D18)."""

    def judge(self, item: PreparedItem, raw_event: bytes, claims: Claims) -> PreparedItem:
        """An item with what the plug-in finds and will check, each at its step of sync 8.2."""


class _Received(Struct):
    """A frame that waits for its turn, and what was found on its arrival."""

    frame: bytes
    is_text: bool
    too_fast: bool
    too_many_values: bool
    """Whether it holds more JSON values than may be read (sync D78)."""
    drafts: int
    """How many drafts it brought."""
    events: Sequence[bytes]
    """The events of these drafts as sent; none if they are too many to be looked at, or while it
    may be a submit of the usual form, which has them."""
    too_many: bool
    """Whether more drafts were in flight than may be when it arrived (sync D56)."""
    may_follow: bool
    """Whether it may be looked at while submits before it wait in the committer's queue."""
    is_plain: bool
    """Whether it is a submit of the usual form."""
    submit: PlainSubmit | None
    """As such; not while it waits: that can take over ten times the memory of the frame."""


class Session:
    """The server's end of one connection."""

    def __init__(
        self,
        settings: SyncSettings,
        model: Model,
        tokens: Tokens,
        now: float,
        plugin: ApplicationRules | None = None,
    ) -> None:
        self._settings = settings
        self._plugin = plugin
        self._model = model
        self._tokens = tokens
        self.claims: Claims | None = None
        """Who the peer is; None before the handshake."""
        self._by: Preparation | None = None
        """What its items are prepared by, once it has connected in the protocol's own form."""
        self.profile = ""
        self.form: WireForm = NATIVE
        """The dialect of the peer."""
        self.project = ""
        """What a peer of insieme's dialect is connected to; empty for all others (sync 21.2)."""
        self.closed = False
        self._cycle: Cycle | None = None
        self._inbox: deque[_Received] = deque()
        self._inbox_bytes = 0
        self._current: _Received | None = None
        """The message being processed; nothing after it is looked at."""
        self._queued: deque[_Received] = deque()
        """Submits in the committer's queue, in its order."""
        self._queued_bytes = 0
        self._in_flight = 0
        """Drafts received and not yet answered, counted on arrival (sync D56)."""
        self._alive_at = self._pinged_at = now
        self._window_started, self._window_messages = now, 0

    @property
    def is_full(self) -> bool:
        """Whether the peer should be made to wait."""
        return len(self._inbox) >= INBOX_MESSAGES or self._inbox_bytes >= INBOX_BYTES

    # What happens to the connection.

    def receive(self, frame: bytes, *, is_text: bool, now: float, unix_now: float) -> list[Action]:
        """A frame came; `now` is a steady clock in seconds, `unix_now` is what `exp` refers to."""
        if self.closed:
            return []
        if now - self._window_started >= 1:
            self._window_started, self._window_messages = now, 0
        self._window_messages += 1
        limits = self._settings
        too_fast = self._window_messages > limits.max_messages_per_second
        is_small = len(frame) <= limits.max_message_bytes
        too_many_values = is_small and strictjson.has_more_values(frame, limits.max_message_values)
        is_read = is_small and not too_fast and not too_many_values
        submit = plain_submit(frame) if is_read and self.form is NATIVE else None
        events: Sequence[bytes] = ()
        if submit is not None:
            drafts = len(submit.payload.events)
        else:
            if is_read:
                events = self.form.raw_drafts(frame, limits.batch_size)
            drafts = len(events)
            if drafts > limits.max_batch_size:
                events = ()
        self._in_flight += drafts
        received = _Received(
            frame,
            is_text,
            too_fast,
            too_many_values,
            drafts,
            events,
            too_many=self._in_flight > limits.max_in_flight_drafts,
            may_follow=drafts > 0,
            is_plain=submit is not None,
            submit=submit,
        )
        if self._inbox or not self._may_start(received):
            received.submit = None
            self._inbox.append(received)
            self._inbox_bytes += len(frame)
            return self._next(now, unix_now)
        actions: list[Action] = []
        self._start(received, actions, now, unix_now)
        return actions

    def done(self, now: float, unix_now: float) -> list[Action]:
        """The action that was asked for is finished; returns what to do next."""
        if self._current is not None:
            self._in_flight -= self._current.drafts
            self._current = None
        return self._next(now, unix_now)

    def queued(self, now: float, unix_now: float) -> list[Action]:
        """The submit is on its way to the committer's queue; returns what to do meanwhile."""
        assert self._current is not None  # noqa: S101 - one was asked for
        self._queued.append(self._current)
        self._queued_bytes += len(self._current.frame)
        self._current = None
        return self._next(now, unix_now) if self._inbox else []

    def answered(self, now: float, unix_now: float) -> list[Action]:
        """The oldest submit in the committer's queue is answered; returns what to do next."""
        received = self._queued.popleft()
        self._queued_bytes -= len(received.frame)
        self._in_flight -= received.drafts
        return self._next(now, unix_now) if self._inbox else []

    def postponed(self, count: int = 1) -> bool:
        """The last `count` submits found no room in the committer's queue.

        They are tried again, after the answers to those before them. If there are none before them,
        the first of them must be refused: it is the current one again, and this returns False.
        """
        if self._current is not None:
            self._queued.append(self._current)
            self._queued_bytes += len(self._current.frame)
            self._current = None
        for number in range(count, 0, -1):
            received = self._queued.pop()
            self._queued_bytes -= len(received.frame)
            if number == 1 and not self._queued:
                self._current = received
                return False
            self._wait_for_answers(received)
        return True

    def paged(self, action: Sync, next_since: int, watermark: int, *, has_more: bool) -> None:
        """A page was sent: remember the cycle if it goes on."""
        self._cycle = Cycle(action.partitions, next_since, watermark) if has_more else None

    @property
    def watermark(self) -> int | None:
        """The end of the open cycle; None if no cycle is open."""
        return None if self._cycle is None else self._cycle.watermark

    def due(self, now: float, unix_now: float, heard_at: float) -> list[Action]:
        """Time passed: an expired token or a silent client ends the connection.

        `heard_at` is when the last frame came, whatever it was.
        """
        if self.closed:
            return []
        if self.claims is not None and unix_now >= self.claims.expires_at:
            return self._fail(Problem("auth_failed", "the token has expired"))
        timeout = self._settings.heartbeat_timeout_ms / 1000
        if self.project:  # its package sends no heartbeats, but every WebSocket replies to pings
            self._alive_at = max(self._alive_at, heard_at)
        if now - self._alive_at >= timeout:
            self.closed = True
            return [Close(HEARTBEAT_TIMEOUT)]
        asked_at = max(self._alive_at, self._pinged_at)
        if self.project and now - asked_at >= timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = now
            return [Ping()]
        return []

    def busy(self, message: str) -> list[Action]:
        """What was asked for cannot be done now."""
        return self.refuse(Problem("rate_limited", message, retry_after_ms=RETRY_AFTER_MS))

    def refuse(self, problem: Problem) -> list[Action]:
        """What was asked for turned out to be impossible."""
        return [] if self.closed else self._fail(problem)

    def fail(self) -> list[Action]:
        """The server could not do what was asked, and does not know how much of it happened."""
        if self.closed:
            return []
        return self._fail(Problem("server_error", "internal error; retry all drafts"))

    # One message after another.

    def _next(self, now: float, unix_now: float) -> list[Action]:
        actions: list[Action] = []
        while self._inbox and self._may_start(self._inbox[0]) and not self.closed:
            received = self._inbox.popleft()
            self._inbox_bytes -= len(received.frame)
            self._start(received, actions, now, unix_now)
        return actions

    def _start(
        self, received: _Received, actions: list[Action], now: float, unix_now: float
    ) -> None:
        """Process a message whose turn it is, and add what is to be done about it."""
        try:
            if received.too_fast:
                raise Problem("rate_limited", "too many messages", retry_after_ms=1000)
            action = self._handle(received, now, unix_now)
        except Problem as problem:
            if self._queued:
                # The error must not overtake the answers to the submits before it, and may be
                # another one by then: the token can expire meanwhile.
                self._wait_for_answers(received)
            else:
                self._in_flight -= received.drafts
                actions += self._fail(problem)
            return
        actions.append(action)
        if isinstance(action, _WORK):
            self._current = received
        else:
            self._in_flight -= received.drafts

    def _may_start(self, received: _Received) -> bool:
        if self._current is not None:
            return False
        return not self._queued or (
            received.may_follow
            and len(self._queued) < QUEUED_MESSAGES
            and self._queued_bytes + len(received.frame) <= QUEUED_BYTES
        )

    def _wait_for_answers(self, received: _Received) -> None:
        """Put a submit back: it is looked at anew when those before it are answered."""
        received.may_follow, received.submit = False, None
        self._inbox.appendleft(received)
        self._inbox_bytes += len(received.frame)

    def _fail(self, problem: Problem) -> list[Action]:
        problem = self.form.refusal(problem)
        actions: list[Action] = [Send("error", self.form.error(problem), problem.reply_to)]
        close_code = problem.close_code or CLOSE_CODES.get(problem.code)
        if close_code is not None:
            self.closed = True
            actions.append(Close(close_code))
        return actions

    def _handle(self, received: _Received, now: float, unix_now: float) -> Action:
        submit = received.submit
        if submit is None and received.is_plain:  # it has waited
            submit = plain_submit(received.frame)
        if submit is not None:
            action = self._plain_submit(submit, received, unix_now)
            if action is not None:
                return action
            received.events = submit.events
        message = self._read(received)
        if self.claims is None:
            self.form = InsiemeForm() if insieme.is_spoken(message) else NATIVE
        if self.form is not NATIVE:
            return self._handle_insieme(message, received, now, unix_now)
        hint = message["msg_id"] if isinstance(message.get("msg_id"), str) else None
        try:
            kind = self._check_envelope(message)
            self._check_identity(message["payload"], unix_now)
            return self._dispatch(kind, message["payload"], received, now)
        except Problem as problem:
            if hint is not None:
                problem.details.setdefault("request_msg_id", hint)
            raise

    def _read(self, received: _Received) -> dict[str, Any]:
        limits = self._settings
        if len(received.frame) > limits.max_message_bytes:
            raise Problem(
                "bad_request",
                "the message is too large",
                max_message_bytes=limits.max_message_bytes,
            )
        if not received.is_text:
            raise Problem("bad_request", "messages must be text frames")
        if received.too_many_values:
            raise Problem(
                "bad_request",
                "the message has too many JSON values",
                max_message_values=limits.max_message_values,
            )
        try:
            message = strictjson.read(received.frame)
        except InvalidJson as error:
            raise Problem("bad_request", f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise Problem("bad_request", "a message must be an object")
        return message

    def _check_envelope(self, message: Mapping[str, Any]) -> str:
        kind, msg_id = message.get("type"), message.get("msg_id")
        timestamp, version = message.get("timestamp"), message.get("protocol_version")
        if not isinstance(kind, str):
            raise Problem("bad_request", "type: must be a string")
        if not isinstance(msg_id, str) or not msg_id:
            raise Problem("bad_request", "msg_id: must be a non-empty string")
        if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
            raise Problem("bad_request", "timestamp: must be a number")
        if not isinstance(message.get("payload"), dict):
            raise Problem("bad_request", "payload: must be an object")
        if version not in SUPPORTED_VERSIONS:
            if not isinstance(version, str) or not _VERSION.fullmatch(version):
                raise Problem("bad_request", "protocol_version: must be MAJOR.MINOR")
            raise Problem(
                "protocol_version_unsupported",
                "this protocol version is not supported",
                supported_versions=list(SUPPORTED_VERSIONS),
                requested_version=version,
            )
        if kind not in CLIENT_TYPES:
            raise Problem("bad_request", "unknown type")
        if kind == "connect" and self.claims is not None:
            raise Problem("bad_request", "already connected")
        if kind not in ("connect", "heartbeat") and self.claims is None:
            raise Problem("bad_request", "connect first")
        return kind

    def _check_identity(self, payload: Mapping[str, Any], unix_now: float) -> None:
        if self.claims is None:
            return
        if unix_now >= self.claims.expires_at:
            raise Problem("auth_failed", "the token has expired")
        client_id = self.claims.client_id
        events = payload.get("events")
        asserting = [payload]
        if isinstance(events, list):
            asserting += [item for item in events if isinstance(item, dict)]
        for each in asserting:
            if each.get("client_id", client_id) != client_id:
                raise Problem("auth_failed", "client_id is not the authenticated one")

    def _dispatch(
        self, kind: str, payload: dict[str, Any], received: _Received, now: float
    ) -> Action:
        match kind:
            case "heartbeat":
                self._alive_at = now
                return Send("heartbeat_ack", b"{}")
            case "connect":
                return self._connect(payload, now)
            case "disconnect":
                if not isinstance(payload.get("reason", ""), str):
                    raise Problem("bad_request", "reason: must be a string")
                self.closed = True
                return Close(NORMAL)
            case "submit_events":
                return self._submit(payload, received)
            case _:
                return self._sync(payload)

    # connect

    def _connect(self, payload: Mapping[str, Any], now: float) -> Action:
        token, client_id = payload.get("token"), payload.get("client_id")
        if not isinstance(token, str):
            raise Problem("bad_request", "token: must be a string")
        if not isinstance(client_id, str) or not client_id:
            raise Problem("bad_request", "client_id: must be a non-empty string")
        whole_number(payload, "last_committed_id", default=0, least=0)
        wanted = payload.get("supported_profiles", [COMPATIBILITY])
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            raise Problem("bad_request", "supported_profiles: must be an array of strings")
        for name in ("required_profile", "required_tree_policy"):
            if not isinstance(payload.get(name, ""), str):
                raise Problem("bad_request", f"{name}: must be a string")
        incarnation = read_incarnation(payload)
        claims = self._verify(token, client_id)
        profile = negotiate(
            self._settings.profiles,
            wanted,
            payload.get("required_profile"),
            payload.get("required_tree_policy"),
        )
        if profile is None:
            raise Problem(
                "profile_unsupported",
                "no offered profile fits",
                supported_profiles=list(self._settings.profiles),
            )
        self.claims, self.profile, self._alive_at = claims, profile, now
        allows = allowed(claims, self._plugin, "write")
        self._by = Preparation(claims.client_id, claims.user_id, profile, self._model, allows)
        capabilities: dict[str, Any] = {
            "profile": profile,
            "accepted_event_types": list(accepted_types(profile)),
        }
        if profile == COMPATIBILITY:
            capabilities |= {"tree_policy": "strict", "snapshots": True}
        return Connected(capabilities, incarnation)

    def _verify(self, token: str, client_id: str) -> Claims:
        try:
            claims = self._tokens.verify(token)
        except TokenRefused as error:
            raise Problem("auth_failed", f"the token was refused: {error}") from None
        if claims.client_id != client_id:
            raise Problem("auth_failed", "client_id is not that of the token")
        return claims

    # submit_events

    def _plain_submit(
        self, submit: PlainSubmit, received: _Received, unix_now: float
    ) -> Submit | None:
        """A submit of the usual form; None if something may be wrong with it, and must be found."""
        claims, by = self.claims, self._by
        if (
            claims is None
            or by is None
            or self.form is not NATIVE  # it may have been settled after the frame came
            or unix_now >= claims.expires_at
            or not received.is_text
            or received.too_many
        ):
            return None
        items = prepared_items(submit, received.frame, by, self._settings.max_batch_size)
        if items is None:
            return None
        if self._plugin is not None:
            judge = self._plugin.judge
            items = [
                judge(item, bytes(raw), claims)
                for item, raw in zip(items, submit.events, strict=True)
            ]
        return Submit(tuple(items), len(received.frame), submit.stops_at_rejection)

    def _submit(self, payload: Mapping[str, Any], received: _Received) -> Action:
        assert self.claims is not None  # noqa: S101 - checked with the envelope
        check_submit(payload, self._settings.max_batch_size)
        _check_in_flight(received)
        items = prepare_submit(
            payload, received.events, self.claims, self.profile, self._model, self._plugin
        )
        stops = payload.get("stop_at_rejection", False)
        return Submit(items, len(received.frame), stops_at_rejection=stops)

    # sync

    def _sync(self, payload: Mapping[str, Any]) -> Action:
        assert self.claims is not None  # noqa: S101 - checked with the envelope
        action = read_sync(payload, self._settings, allowed(self.claims, self._plugin, "read"))
        if self.profile != COMPATIBILITY:  # the server has states of the tree profile only
            action = structs.replace(action, snapshot=None)
        cycle = self._cycle
        if (
            cycle is not None
            and cycle.partitions == action.partitions
            and cycle.next_since == action.since
        ):
            action = structs.replace(action, watermark=cycle.watermark)
        return action

    # The dialect of insieme (sync 21).

    def _handle_insieme(
        self, message: Mapping[str, Any], received: _Received, now: float, unix_now: float
    ) -> Action:
        given = message.get("msgId")
        reply_to = given if isinstance(given, str) else None
        try:
            kind = insieme.read_envelope(message, is_connected=self.claims is not None)
            payload = message["payload"]
            action: Connected | Submit | Sync
            if self.claims is None:
                action = self._connect_insieme(payload, now)
            elif unix_now >= self.claims.expires_at:
                raise Problem("auth_failed", "the token has expired")
            elif kind == "sync":
                action = self._sync_insieme(payload)
            else:
                action = self._submit_insieme(payload, received, self.claims)
        except Problem as problem:
            problem.reply_to = reply_to
            raise
        return structs.replace(action, reply_to=reply_to)

    def _connect_insieme(self, payload: Mapping[str, Any], now: float) -> Connected:
        token, client_id, project = insieme.read_connect(payload)
        claims = self._verify(token, client_id)
        prefix = project + SEPARATOR
        if not (claims.allows_all(prefix) and allowed(claims, self._plugin, "read")(prefix)):
            problem = Problem("forbidden", "projectId: this project is not allowed")
            problem.close_code = PROJECT_FORBIDDEN
            raise problem
        self.claims, self.project, self.profile, self._alive_at = claims, project, INSIEME, now
        self.form = InsiemeForm(project)
        return Connected({})

    def _submit_insieme(
        self, payload: Mapping[str, Any], received: _Received, claims: Claims
    ) -> Submit:
        items = insieme.check_submit(payload)
        _check_in_flight(received)
        most = self._settings.batch_size
        rules = insieme.Rules(
            claims, self.project, self._model, allowed(claims, self._plugin, "write")
        )
        prepared, raws = insieme.prepare_items(items[:most], received.events, rules)
        if self._plugin is not None:
            judged = zip(prepared, raws, strict=True)
            prepared = tuple([self._plugin.judge(item, raw, claims) for item, raw in judged])
        left_over = tuple([item["id"] for item in items[most:]])
        return Submit(prepared, len(received.frame), stops_at_rejection=True, left_over=left_over)

    def _sync_insieme(self, payload: Mapping[str, Any]) -> Sync:
        action = insieme.read_sync(payload, self.project, MAX_PAGE_BYTES)
        return structs.replace(action, limit=clamped_limit(action.limit, self._settings))


def _check_in_flight(received: _Received) -> None:
    if received.too_many:
        raise Problem("rate_limited", "too many drafts in flight", retry_after_ms=RETRY_AFTER_MS)


def clamped_limit(limit: int, settings: SyncSettings) -> int:
    """How many events a page has at most, of what was asked for."""
    return max(settings.sync_limit_min, min(settings.sync_limit_max, limit))


def whole_number(
    payload: Mapping[str, Any], name: str, *, default: int | None = None, least: int | None = None
) -> int:
    """An integer field; integral floats count (sync D4). Without a default it is required."""
    value = payload.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Problem("bad_request", f"{name}: must be an integer")
    if least is not None and value < least:
        raise Problem("bad_request", f"{name}: must be at least {least}")
    return value


def read_incarnation(payload: Mapping[str, Any]) -> str | None:
    """The history that a client says it follows; None if it does not say."""
    value = payload.get("incarnation")
    if "incarnation" in payload and (not isinstance(value, str) or not value):
        raise Problem("bad_request", "incarnation: must be a non-empty string")
    return value


def negotiate(
    offered: Sequence[str],
    wanted: Sequence[str],
    required: str | None,
    tree_policy: str | None,
) -> str | None:
    """The profile of a connection (sync D14), or None if none fits."""
    if required is not None:
        chosen = required if required in wanted and required in offered else None
    else:
        chosen = next((name for name in wanted if name in offered), None)
    if chosen == COMPATIBILITY and tree_policy not in (None, "strict"):
        return None
    return chosen if chosen in (COMPATIBILITY, CANONICAL) else None


def check_submit(payload: Mapping[str, Any], max_batch_size: int) -> None:
    """The invariants of a whole request (sync 8.1): if one fails, nothing of it is processed."""
    events = payload.get("events")
    if not isinstance(events, list) or not events:
        raise Problem("bad_request", "events: must be a non-empty array")
    if len(events) > max_batch_size:
        raise Problem("bad_request", "events: too many", max_batch_size=max_batch_size)
    if not isinstance(payload.get("stop_at_rejection", False), bool):
        raise Problem("bad_request", "stop_at_rejection: must be true or false")
    seen: set[str] = set()
    for index, item in enumerate(events):
        at = f"events.{index}"
        if not isinstance(item, dict):
            raise Problem("bad_request", f"{at}: must be an object")
        item_id, event = item.get("id"), item.get("event")
        if not isinstance(item_id, str) or not 0 < len(item_id.encode()) <= MAX_ID_BYTES:
            raise Problem("bad_request", f"{at}.id: must be a string of 1 to {MAX_ID_BYTES} bytes")
        if item_id in seen:
            raise Problem("bad_request", f"{at}.id: appears twice in one request")
        seen.add(item_id)
        names = item.get("partitions")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Problem("bad_request", f"{at}.partitions: must be an array of strings")
        if "partition" in item and not _is_same_partition(item["partition"], names):
            raise Problem("bad_request", f"{at}.partition: must name the same as partitions")
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise Problem("bad_request", f"{at}.event: must be an object with a type")
        if not isinstance(event.get("payload"), dict):
            raise Problem("bad_request", f"{at}.event.payload: must be an object")


def _is_same_partition(legacy: Any, names: Sequence[str]) -> bool:
    return isinstance(legacy, str) and normal_set([legacy]) == normal_set(names)


def allowed(
    claims: Claims, plugin: ApplicationRules | None, access: Access
) -> Callable[[str], bool]:
    """Which partitions a client may touch: those that token and plug-in allow (sync D18)."""
    return claims.allows if plugin is None else plugin.restrict(claims, access)


def prepare_submit(
    payload: Mapping[str, Any],
    raws: Sequence[bytes],
    claims: Claims,
    profile: str,
    model: Model,
    plugin: ApplicationRules | None = None,
) -> tuple[PreparedItem, ...]:
    """The stateless work of every item of a checked request, whose events as sent are `raws`."""
    allows = allowed(claims, plugin, "write")
    items = tuple(
        prepare(
            item,
            raw,
            client_id=claims.client_id,
            profile=profile,
            model=model,
            allows=allows,
            user_id=claims.user_id,
        )
        for item, raw in zip(payload["events"], raws, strict=True)
    )
    if plugin is None:
        return items
    return tuple(plugin.judge(item, raw, claims) for item, raw in zip(items, raws, strict=True))


def read_sync(
    payload: Mapping[str, Any], settings: SyncSettings, allows: Callable[[str], bool]
) -> Sync:
    """A sync request, checked and authorized, as if it opened a new cycle."""
    partitions = _partition_list(payload, "partitions", settings.max_partitions)
    if not partitions:
        raise Problem("bad_request", "partitions: must not be empty")
    subscriptions = None
    if "subscription_partitions" in payload:
        subscriptions = _partition_list(payload, "subscription_partitions", settings.max_partitions)
    since = whole_number(payload, "since_committed_id", least=0)
    limit = whole_number(payload, "limit", default=DEFAULT_LIMIT)
    max_bytes = whole_number(payload, "max_bytes", default=MAX_PAGE_BYTES)
    snapshot = _read_wish(payload)
    named = {*partitions, *(subscriptions or ())}
    denied = [name for name in named if not allows(name)]
    if denied:
        raise Problem(
            "forbidden",
            "not all of these partitions are allowed",
            partitions=list(normal_set(denied)),
        )
    limit = clamped_limit(limit, settings)
    max_bytes = max(0, min(MAX_PAGE_BYTES, max_bytes))
    if since > 0 or len(partitions) > 1:
        snapshot = None
    return Sync(partitions, subscriptions, since, limit, max_bytes, None, snapshot)


def _read_wish(payload: Mapping[str, Any]) -> SnapshotWish | None:
    accepts = payload.get("accept_snapshot", False)
    if not isinstance(accepts, bool):
        raise Problem("bad_request", "accept_snapshot: must be true or false")
    start = whole_number(payload, "snapshot_from", default=0, least=0)
    committed_id = None
    if "snapshot_committed_id" in payload:
        committed_id = whole_number(payload, "snapshot_committed_id", least=0)
    return SnapshotWish(committed_id, start) if accepts else None


def _partition_list(payload: Mapping[str, Any], name: str, most: int) -> tuple[str, ...]:
    names = payload.get(name)
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise Problem("bad_request", f"{name}: must be an array of strings")
    if len(names) > most:
        raise Problem("bad_request", f"{name}: too many", max_partitions=most)
    faults = name_faults(names)
    if faults:
        raise Problem("bad_request", f"{name}: {faults[0].message}")
    return normal_set(names)
