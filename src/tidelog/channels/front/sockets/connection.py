"""One channels connection: drives its session and does what it asks for, one thing at a time."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.base.net.frame import PING, frame, text_frame
from tidelog.base.serving.address_quota import NO_QUOTA, AddressQuota
from tidelog.base.serving.message_queue import MessageQueue
from tidelog.base.serving.surface import Outlet
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.actions import (
    Action,
    ClientEvent,
    Close,
    Ping,
    PresenceUpdate,
    PublishEvent,
    ReadHistory,
    Resume,
    Send,
    SignedIn,
    Subscribe,
    TokenAccepted,
    Unsubscribe,
)
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.session import Session, refusal
from tidelog.channels.protocol.tokens import TokenRefused
from tidelog.channels.protocol.upgrade import Options, claims_of
from tidelog.channels.settings import App, set_by

if TYPE_CHECKING:
    from tidelog.channels.front.service import ChannelsService
    from tidelog.channels.front.sockets.hub import Subscription

TOO_MANY_FAILURES = "too many failed authentications from your address" + set_by(
    "per_address.max_failed_authentications_per_minute"
)

PUSHED_BYTES = 1_048_576
PUSHED_FRAMES = 256
"""The most that is pushed to a socket at once, except for a single larger frame; then the sender
waits until the socket has taken it: a healthy peer that is sent a long past must not look like one
that does not read. Well below `limits.send_buffer_bytes` and `send_buffer_messages`."""

_log = logging.getLogger(__name__)


class ResumedTo(NamedTuple):
    """The position a subscribe goes on from, and in which epoch."""

    serial: int
    stream_id: str


class Connection:
    """A `Conversation`. Its messages are worked on strictly in the order they came."""

    session: Session
    push: Callable[[bytes], None]
    """Queues an encoded frame; there from `opened` on, and of no effect once it is closed. It is
    the outlet's own: a call less for each subscriber and frame."""

    def __init__(
        self,
        service: "ChannelsService",
        app: App | None,
        options: Options,
        socket_id: str,
        quota: AddressQuota = NO_QUOTA,
    ) -> None:
        self._service = service
        self._frames = service.hub.frames
        self._app = app
        self._options = options
        self.socket_id = socket_id
        self.version = options.version
        self.append_mode = options.append_mode
        """Whether appends come as fragments or as the whole text."""
        self.rollup_window = options.rollup_window
        """For how long appends may be held to leave together, in milliseconds."""
        self.quota = quota
        """Whose limits its subscriptions count against."""
        self.subscriptions: dict[str, Subscription] = {}
        """By channel name."""
        self.resumed: dict[str, ResumedTo] = {}
        """Channels that were resumed before they were subscribed to (channels D6)."""
        self.held_bytes = 0
        """Of all frames that its subscriptions hold back."""
        self._outlet: Outlet | None = None
        self._inbox = MessageQueue()
        self._work: asyncio.Task[None] | None = None
        self._is_busy = False

    @property
    def app(self) -> App:
        """The app it belongs to; there is one, or the connection never began."""
        assert self._app is not None  # noqa: S101 - see `opened`
        return self._app

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._outlet is None or self.session.closed

    # Conversation.

    def opened(self, outlet: Outlet) -> None:
        """See `Conversation.opened`."""
        self._outlet, self.push = outlet, outlet.push
        code = self._service.refusal_code(self._app)
        if code is not None or self._app is None:
            self._act_at_once(refusal(self._frames, self.version, code or wire.APP_UNKNOWN))
            return
        if self._options.token is not None and self.quota.wait_seconds():
            self._act_at_once(
                refusal(self._frames, self.version, wire.OVER_CAPACITY, TOO_MANY_FAILURES)
            )
            return
        try:
            claims = claims_of(self._app, self._options, time.time())
            if claims is not None and self._service.is_revoked(self._app, claims):
                raise TokenRefused("the token was revoked")
        except TokenRefused as error:
            self.quota.failed()
            self._act_at_once(refusal(self._frames, self.version, wire.UNAUTHORIZED, str(error)))
            return
        options = self._options
        self.session = Session(
            self._app,
            self._service.settings,
            self._frames,
            socket_id=self.socket_id,
            version=options.version,
            append_mode=options.append_mode,
            echo=options.echo,
            token=claims,
            now=asyncio.get_running_loop().time(),
        )
        self._service.opened(self)
        self._act_at_once(self.session.opening())

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """See `Conversation.received`."""
        if not hasattr(self, "session"):
            return
        if self._is_busy:
            self._inbox.add(payload, is_text=is_text)
            if self._inbox.is_full and self._outlet is not None:
                self._outlet.pause_reading()
        else:
            self._handle(payload, is_text=is_text)

    def closed(self, code: int) -> None:
        """See `Conversation.closed`."""
        del code
        self._outlet = None
        self._inbox.clear()
        if hasattr(self, "session"):
            self.session.closed = True
            self._service.closed(self)

    # What others do to it.

    def send(self, json: bytes) -> None:
        """Queue a frame of its own, after whatever was held for it."""
        if self.rollup_window:
            self._service.hub.rolling.before_frame_of(self)
        self.push(text_frame(json))

    async def drained(self) -> None:
        """Wait until the socket has taken what was sent."""
        if self._outlet is not None:
            await self._outlet.drained()

    def end(self, code: int) -> None:
        """Close it with an error frame of that code."""
        self._act_at_once(self.session.end(code))

    def revoke(self) -> None:
        """Its token was revoked."""
        self._act_at_once(self.session.revoke())

    @property
    def may_remember(self) -> bool:
        """Whether one more channel may be resumed before its subscribe; they must not pile up."""
        return len(self.resumed) < self._service.settings.max_subscriptions_per_connection

    def look_after(self, now: float) -> None:
        """Time passed."""
        if self._outlet is not None:
            self._act_at_once(self.session.due(now, time.time(), self._outlet.heard_at))

    # Its own doing.

    def _handle(self, payload: bytes, *, is_text: bool) -> None:
        now = asyncio.get_running_loop().time()
        failures = self.session.failures
        actions = self.session.receive(payload, is_text=is_text, now=now, unix_now=time.time())
        slow = self._act_at_once(actions)
        if self.session.failures > failures:
            self._failed()
        if slow:
            self._is_busy = True
            self._work = asyncio.create_task(self._act_slowly(slow))

    def _failed(self) -> None:
        """It could not prove what it said; whoever does so too often comes back later."""
        self.quota.failed()
        if self.quota.wait_seconds() and not self.session.closed:
            self._act_at_once(self.session.end(wire.OVER_CAPACITY, TOO_MANY_FAILURES))

    def _act_at_once(self, actions: list[Action]) -> list[Action]:
        """Do what needs no waiting; returns the rest, from the first action that does."""
        for number, action in enumerate(actions):
            match action:
                case Send(json):
                    self.send(json)
                case Ping():
                    self.push(frame(PING, b""))
                case Close(code, reason):
                    if self._outlet is not None:
                        self._outlet.close(code, reason)
                case Unsubscribe(channel):
                    self._service.unsubscribe(self, channel)
                    self.session.left(channel)
                case PresenceUpdate(channel, user_id, user_info):
                    subscription = self.subscriptions.get(channel)
                    if subscription is not None:
                        subscription.channel.update(self, user_id, user_info)
                case TokenAccepted(claims):
                    if self._service.is_revoked(self.app, claims):
                        self.revoke()
                        return []
                case _:
                    return actions[number:]
        return []

    async def _act_slowly(self, actions: list[Action]) -> None:
        try:
            while actions:
                await self._do(actions[0])
                actions = self._act_at_once(actions[1:])
        finally:
            self._is_busy = False
        while self._inbox and not self._is_busy and not self.session.closed:
            payload, is_text = self._inbox.take()
            self._handle(payload, is_text=is_text)
        if self._outlet is not None and not self._inbox.is_full:
            self._outlet.resume_reading()

    async def _do(self, action: Action) -> None:
        """One thing that may have to wait; whatever goes wrong must not leave the peer waiting."""
        try:
            match action:
                case Subscribe():
                    await self._service.subscribing.subscribe(self, action)
                case Resume():
                    await self._service.subscribing.resume(self, action)
                case ReadHistory():
                    await self._read_history(action)
                case SignedIn(user_id):
                    await self._service.signed_in(self, user_id)
                case ClientEvent():
                    await self._send_event(action)
                case PublishEvent():
                    await self._publish(action)
        except (StoreError, ShuttingDown, QueueFull) as error:
            _log.warning("a channels request failed: %s", error)
            self.end(wire.OVER_CAPACITY)
        except Exception:  # noqa: BLE001 - a mistake of ours; the peer reconnects and resumes
            _log.exception("a channels request failed")
            self.end(wire.OVER_CAPACITY)

    async def _read_history(self, action: ReadHistory) -> None:
        try:
            page = await self._service.subscribing.history(self, action)
            self.send(self._frames.channel_history(action.channel, page))
        except Fault as refused:
            self.send(self._frames.error(self.version, wire.CHANNEL_ERROR, refused.error))
        finally:
            self.session.history_done()

    async def _send_event(self, action: ClientEvent) -> None:
        try:
            refused = await self._service.client_event(self, action)
        except QueueFull as error:
            refused = fault.backpressure(str(error))
        if refused is not None:
            self.send(self._frames.error(self.version, wire.CLIENT_EVENT_REJECTED, refused.error))

    async def _publish(self, action: PublishEvent) -> None:
        try:
            refused = await self._service.publish_event(self, action)
        except QueueFull as error:
            refused = fault.backpressure(str(error))
        if refused is not None:
            wanted = action.publication
            [channel] = wanted.channels
            self.send(self._frames.publish_refused(channel, refused, wanted.message_id))


class Sending:
    """Frames of the past on their way to one connection, no faster than its socket takes them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bytes = 0
        self._frames = 0

    async def push(self, frame: bytes) -> None:
        """Send the next one."""
        is_full = self._bytes + len(frame) > PUSHED_BYTES or self._frames == PUSHED_FRAMES
        if self._frames and is_full:
            self._bytes = self._frames = 0
            await self._connection.drained()
        self._connection.push(frame)
        self._bytes += len(frame)
        self._frames += 1
