"""One sync connection as a state machine: messages in, actions out; no sockets, no sleeping.

Messages are checked in the order of sync 1; the first failure decides what is returned. They are
processed strictly one after another, in the order they came (sync D9).

Once a submit is in the committer's queue its turn is fixed, so further submits may follow it there
before it is answered. Whatever else comes after it waits for its answer.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, structs

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.sync.plugin import Access
from tidelog.sync.protocol.actions import Action, Close, Connected, Send, SnapshotWish, Submit, Sync
from tidelog.sync.protocol.items import PreparedItem, prepare
from tidelog.sync.protocol.partitions import name_faults, normal_set
from tidelog.sync.protocol.profiles import CANONICAL, COMPATIBILITY, Model, accepted_types
from tidelog.sync.protocol.tokens import Claims, TokenRefused, Tokens
from tidelog.sync.protocol.wire import (
    CLIENT_TYPES,
    CLOSE_CODES,
    HEARTBEAT_TIMEOUT,
    NORMAL,
    SUPPORTED_VERSIONS,
    encode,
    error_payload,
    raw_events,
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
MAX_ID_BYTES = 128
RETRY_AFTER_MS = 1000

_VERSION = re.compile(r"[0-9]+\.[0-9]+")


_WORK = (Connected, Submit, Sync)
"""Actions whose end the service reports, by `done` or `queued`."""


class Cycle(Struct, frozen=True):
    """A sync cycle with more pages to come (sync D37)."""

    partitions: tuple[str, ...]
    next_since: int
    watermark: int


class Problem(Exception):  # noqa: N818 - the failure is the noun
    """Answered with `error`; whether that closes the connection follows from the code."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class ApplicationRules(Protocol):
    """What the application's plug-in adds to the rules of the protocol."""

    def restrict(self, claims: Claims, access: Access) -> Callable[[str], bool]:
        """Which partitions are allowed by the token and the plug-in both (sync D18)."""

    def judge(self, item: PreparedItem, raw_event: bytes, claims: Claims) -> PreparedItem:
        """An item with what the plug-in finds and will check, each at its step of sync 8.2."""


class _Received(NamedTuple):
    """A frame that waits for its turn, and what was found on its arrival."""

    frame: bytes
    is_text: bool
    too_fast: bool
    drafts: int
    """How many drafts it brought."""
    events: Sequence[bytes]
    """The events of these drafts as sent; none if they are too many to be looked at."""
    too_many: bool
    """Whether more drafts were in flight than may be when it arrived (sync D56)."""
    may_follow: bool
    """Whether it may be looked at while submits before it wait in the committer's queue."""


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
        self.profile = ""
        self.closed = False
        self._cycle: Cycle | None = None
        self._inbox: deque[_Received] = deque()
        self._current: _Received | None = None
        """The message being processed; nothing after it is looked at."""
        self._queued: deque[_Received] = deque()
        """Submits in the committer's queue, in its order."""
        self._queued_bytes = 0
        self._in_flight = 0
        """Drafts received and not yet answered, counted on arrival (sync D56)."""
        self._alive_at = now
        self._window_started, self._window_messages = now, 0

    @property
    def is_full(self) -> bool:
        """Whether the peer should be made to wait."""
        held = sum(len(received.frame) for received in self._inbox)
        return len(self._inbox) >= INBOX_MESSAGES or held >= INBOX_BYTES

    # What happens to the connection.

    def receive(self, frame: bytes, *, is_text: bool, now: float, unix_now: float) -> list[Action]:
        """A frame came; `now` is a steady clock in seconds, `unix_now` is what `exp` refers to."""
        if self.closed:
            return []
        if now - self._window_started >= 1:
            self._window_started, self._window_messages = now, 0
        self._window_messages += 1
        too_fast = self._window_messages > self._settings.max_messages_per_second
        events = [] if too_fast else raw_events(frame)
        drafts = len(events)
        self._in_flight += drafts
        too_many = self._in_flight > self._settings.max_in_flight_drafts
        if drafts > self._settings.max_batch_size:
            events = []
        received = _Received(frame, is_text, too_fast, drafts, events, too_many, drafts > 0)
        self._inbox.append(received)
        return self._next(now, unix_now)

    def done(self, now: float, unix_now: float) -> list[Action]:
        """The action that was asked for is finished; returns what to do next."""
        if self._current is not None:
            self._in_flight -= self._current.drafts
            self._current = None
        return self._next(now, unix_now)

    def queued(self, now: float, unix_now: float) -> list[Action]:
        """The submit is in the committer's queue; returns what to do meanwhile."""
        assert self._current is not None  # noqa: S101 - one was asked for
        self._queued.append(self._current)
        self._queued_bytes += len(self._current.frame)
        self._current = None
        return self._next(now, unix_now)

    def answered(self, now: float, unix_now: float) -> list[Action]:
        """The oldest submit in the committer's queue is answered; returns what to do next."""
        received = self._queued.popleft()
        self._queued_bytes -= len(received.frame)
        self._in_flight -= received.drafts
        return self._next(now, unix_now)

    def postponed(self) -> bool:
        """The submit found no room in the committer's queue; returns whether it is tried again.

        It is tried after the answers to those before it. If there are none, it must be refused.
        """
        if not self._queued or self._current is None:
            return False
        self._wait_for_answers(self._current)
        self._current = None
        return True

    def paged(self, action: Sync, next_since: int, watermark: int, *, has_more: bool) -> None:
        """A page was sent: remember the cycle if it goes on."""
        self._cycle = Cycle(action.partitions, next_since, watermark) if has_more else None

    @property
    def watermark(self) -> int | None:
        """The end of the open cycle; None if no cycle is open."""
        return None if self._cycle is None else self._cycle.watermark

    def due(self, now: float, unix_now: float) -> list[Action]:
        """Time passed: an expired token or a silent client ends the connection."""
        if self.closed:
            return []
        if self.claims is not None and unix_now >= self.claims.expires_at:
            return self._fail(Problem("auth_failed", "the token has expired"))
        if now - self._alive_at >= self._settings.heartbeat_timeout_ms / 1000:
            self.closed = True
            return [Close(HEARTBEAT_TIMEOUT)]
        return []

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
            try:
                if received.too_fast:
                    raise Problem("rate_limited", "too many messages", retry_after_ms=1000)
                action = self._handle(received, now, unix_now)
            except Problem as problem:
                if self._queued:
                    # The error must not overtake the answers to the submits before it, and may be
                    # another one by then: the token can expire meanwhile.
                    self._wait_for_answers(received)
                    break
                actions += self._fail(problem)
                action = None
            if action is not None:
                actions.append(action)
            if isinstance(action, _WORK):
                self._current = received
            else:
                self._in_flight -= received.drafts
        return actions

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
        self._inbox.appendleft(received._replace(may_follow=False))

    def _fail(self, problem: Problem) -> list[Action]:
        actions: list[Action] = [
            Send("error", error_payload(problem.code, str(problem), problem.details))
        ]
        if problem.code in CLOSE_CODES:
            self.closed = True
            actions.append(Close(CLOSE_CODES[problem.code]))
        return actions

    def _handle(self, received: _Received, now: float, unix_now: float) -> Action:
        message = self._read(received.frame, is_text=received.is_text)
        hint = message["msg_id"] if isinstance(message.get("msg_id"), str) else None
        try:
            kind = self._check_envelope(message)
            self._check_identity(message["payload"], unix_now)
            return self._dispatch(kind, message["payload"], received, now)
        except Problem as problem:
            if hint is not None:
                problem.details.setdefault("request_msg_id", hint)
            raise

    def _read(self, frame: bytes, *, is_text: bool) -> dict[str, Any]:
        limit = self._settings.max_message_bytes
        if len(frame) > limit:
            raise Problem("bad_request", "the message is too large", max_message_bytes=limit)
        if not is_text:
            raise Problem("bad_request", "messages must be text frames")
        try:
            message = strictjson.read(frame)
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
        try:
            claims = self._tokens.verify(token)
        except TokenRefused as error:
            raise Problem("auth_failed", f"the token was refused: {error}") from None
        if claims.client_id != client_id:
            raise Problem("auth_failed", "client_id is not that of the token")
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
        capabilities: dict[str, Any] = {
            "profile": profile,
            "accepted_event_types": list(accepted_types(profile)),
        }
        if profile == COMPATIBILITY:
            capabilities |= {"tree_policy": "strict", "snapshots": True}
        return Connected(capabilities, incarnation)

    # submit_events

    def _submit(self, payload: Mapping[str, Any], received: _Received) -> Action:
        assert self.claims is not None  # noqa: S101 - checked with the envelope
        check_submit(payload, self._settings.max_batch_size)
        if received.too_many:
            raise Problem(
                "rate_limited", "too many drafts in flight", retry_after_ms=RETRY_AFTER_MS
            )
        items = prepare_submit(
            payload, received.events, self.claims, self.profile, self._model, self._plugin
        )
        return Submit(items, len(received.frame))

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
    partitions = _partition_list(payload, "partitions")
    if not partitions:
        raise Problem("bad_request", "partitions: must not be empty")
    subscriptions = None
    if "subscription_partitions" in payload:
        subscriptions = _partition_list(payload, "subscription_partitions")
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
    limit = max(settings.sync_limit_min, min(settings.sync_limit_max, limit))
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


def _partition_list(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    names = payload.get(name)
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise Problem("bad_request", f"{name}: must be an array of strings")
    faults = name_faults(names)
    if faults:
        raise Problem("bad_request", f"{name}: {faults[0].message}")
    return normal_set(names)


def page_payload(
    action: Sync,
    *,
    subscriptions: Sequence[str],
    events: Sequence[bytes],
    next_since: int,
    watermark: int,
    has_more: bool,
    model_version: int | None,
    more: Mapping[str, Any],
) -> bytes:
    """Payload of `sync_response`; `more` has the members that only some responses have."""
    return b'{"partitions":%s,"effective_subscriptions":%s,"events":[%s],%s' % (
        encode(action.partitions),
        encode(subscriptions),
        b",".join(events),
        encode(
            {
                "next_since_committed_id": next_since,
                "sync_to_committed_id": watermark,
                "has_more": has_more,
                **({} if model_version is None else {"model_version": model_version}),
                **more,
            }
        )[1:],
    )
