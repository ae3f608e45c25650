"""One daemon's connection: drives its session and does what that says.

Sends of one connection run together and are committed in the order they came. Everything else that
has to wait (a subscription, a page of history) waits for the sends before it, and what comes after
it waits for it: a member that sends and then unsubscribes must not be told that it was too late.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.base.net.frame import text_frame
from tidelog.base.serving.message_queue import MessageQueue
from tidelog.base.serving.surface import Outlet
from tidelog.mesh.front.peers import SETTINGS_CHANGED
from tidelog.mesh.protocol import replies, wire
from tidelog.mesh.protocol.identity import CHALLENGE_BYTES
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply, rfc3339
from tidelog.mesh.protocol.session import (
    AcceptSend,
    Acknowledge,
    Action,
    Authenticate,
    ChangeSubscription,
    Close,
    ListTopics,
    ReadHistory,
    Ready,
    ReportFailure,
    Send,
    Session,
    ack,
)

if TYPE_CHECKING:
    from tidelog.mesh.front.service import MeshService

_log = logging.getLogger(__name__)


class Connection:
    """A `Conversation`, and the `Receiver` that delivery pushes to."""

    def __init__(self, service: "MeshService", slug: str, public_hosts: frozenset[str]) -> None:
        """A connection to the mesh of a slug; see `Session` for what may have been dialled."""
        self._service = service
        self._slug = slug
        self._public_hosts = public_hosts
        self._session: Session | None = None
        self._outlet: Outlet | None = None
        self._inbox = MessageQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_busy = True
        """Whether something is under way that later frames wait for: first, finding the mesh."""
        self._is_taking = False
        """Whether frames that have waited are being handled: a reply to one of them, which may come
        at once, must not begin with the next inside of it."""
        self._sends = 0
        self._no_sends = asyncio.Event()
        self._no_sends.set()
        self._hello_timer: asyncio.TimerHandle | None = None

    # Receiver.

    @property
    def mesh(self) -> Mesh:
        """See `Receiver.mesh`."""
        assert self._session is not None  # noqa: S101 - whoever asks was told of it
        return self._session.mesh

    @property
    def member(self) -> Member:
        """See `Receiver.member`."""
        assert self._session is not None  # noqa: S101 - whoever asks was told of it
        assert self._session.member is not None  # noqa: S101
        return self._session.member

    @property
    def instance(self) -> str:
        """Which process of its member it is, or nothing."""
        assert self._session is not None  # noqa: S101 - whoever asks was told of it
        return self._session.instance

    @property
    def is_closed(self) -> bool:
        """See `Receiver.is_closed`."""
        return self._outlet is None or self._session is None or self._session.is_closed

    def send(self, json: bytes) -> None:
        """See `Receiver.send`."""
        if self._outlet is not None:
            self._outlet.push(text_frame(json))

    async def drained(self) -> None:
        """See `Receiver.drained`."""
        if self._outlet is not None:
            await self._outlet.drained()

    # Conversation.

    def opened(self, outlet: Outlet) -> None:
        """See `Conversation.opened`."""
        self._outlet = outlet
        self._spawn(self._greet())

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """See `Conversation.received`."""
        if self._must_wait:
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
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._session is not None:
            self._session.closed()
            self._service.left(self)

    # What others do to it.

    def end(self, code: int, reason: str = "") -> None:
        """Close it; it is gone for everybody at once, however long the other side takes."""
        if self._session is not None:
            self._act(self._session.end(code, reason))
            self._service.left(self)

    # Its own doing.

    @property
    def _must_wait(self) -> bool:
        return self._is_busy or self._sends >= self._service.settings.max_in_flight_sends

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self) -> None:
        """Find the mesh and send the challenge."""
        try:
            mesh = await self._service.mesh(self._slug)
        except (StoreError, QueueFull, ShuttingDown) as error:
            _log.warning("a mesh could not be looked up: %s", error)
            self._close(wire.TRY_AGAIN_LATER, "unavailable")
            return
        if mesh is None:
            self._close(wire.UNKNOWN_MESH, "mesh_not_found")
            return
        if self._outlet is None:
            return
        settings = self._service.settings
        challenge = os.urandom(CHALLENGE_BYTES)
        session = Session(
            mesh,
            challenge,
            inline_bytes=settings.max_inline_bytes,
            public_hosts=self._public_hosts,
            requires_host=settings.require_hello_2,
        )
        self._session = session
        self._hello_timer = asyncio.get_running_loop().call_later(
            settings.hello_timeout_ms / 1000, lambda: self._act(session.timed_out())
        )
        now = rfc3339(self._service.clock.now_ms())
        self._act(session.opening(now, self._service.version))
        self._go_on()

    def _close(self, code: int, reason: str) -> None:
        if self._outlet is not None:
            self._outlet.close(code, reason)

    def _handle(self, payload: bytes, *, is_text: bool) -> None:
        if self._session is not None:
            self._act(self._session.receive(payload, is_text=is_text))

    def _act(self, actions: list[Action]) -> None:
        for number, action in enumerate(actions):
            match action:
                case AcceptSend(frame):  # first, because most are
                    self._accept(frame)
                case Acknowledge(frame):
                    self._service.delivery.acknowledged(self, frame)
                case Send(frame):
                    self.send(frame)
                case Close(code, reason):
                    self._close(code, reason)
                case ReportFailure(frame):
                    told = (frame.kind[:64], frame.feature[:64], frame.detail[:200])
                    _log.warning("a daemon cannot work with this broker: %r %r %r", *told)
                case _:
                    self._is_busy = True
                    self._spawn(self._act_slowly(actions[number:]))
                    return

    def _accept(self, frame: wire.SendRequest) -> None:
        self._sends += 1
        self._no_sends.clear()
        self._service.accept_frame(self.mesh, self.member, frame, partial(self._replied, frame.ref))

    def _replied(self, ref: int, reply: Reply) -> None:
        self.send(ack(ref, reply))
        if reply.error == "not_a_member":
            self.end(wire.NOT_A_MEMBER, "revoked")
        self._sends -= 1
        if self._sends == 0:
            self._no_sends.set()
        if self._inbox and not self._is_taking:
            self._take_inbox()

    async def _act_slowly(self, actions: list[Action]) -> None:
        await self._no_sends.wait()
        if not self.is_closed:
            await self._do(actions[0])
        self._act(actions[1:])
        self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        self._take_inbox()

    def _take_inbox(self) -> None:
        self._is_taking = True
        while self._inbox and not self._must_wait:
            payload, is_text = self._inbox.take()
            self._handle(payload, is_text=is_text)
        self._is_taking = False
        if self._outlet is not None and not self._inbox.is_full:
            self._outlet.resume_reading()

    async def _do(self, action: Action) -> None:
        """One thing that has to wait; whatever goes wrong must not leave the peer waiting."""
        try:
            match action:
                case Authenticate(public_hex):
                    await self._authenticate(public_hex)
                case Ready():
                    await self._service.ready(self)
                case ChangeSubscription(ref, topic, is_wanted):
                    reply = await self._service.subscribe(
                        self.mesh, self.member, topic, is_wanted=is_wanted
                    )
                    self.send(ack(ref, reply))
                case ListTopics(ref):
                    topics = await self._service.topics(self.mesh, self.member)
                    self.send(ack(ref, Reply(200, {"topics": topics})))
                case ReadHistory(ref, after, limit):
                    page = await self._service.history(self.mesh, self.member, after, limit)
                    self.send(
                        wire.encode(
                            wire.HistoryPage(
                                ref=ref,
                                items=page.items,
                                next_after=page.next_history_id,
                                has_more=page.has_more,
                            )
                        )
                    )
                    await self.drained()
        except (StoreError, QueueFull, ShuttingDown) as error:
            _log.warning("a mesh request failed: %s", error)
            self._fail(action, replies.unavailable())
        except Exception:  # noqa: BLE001 - a mistake of ours; the daemon is told and goes on
            _log.exception("a mesh request failed")
            self._fail(action, replies.internal())

    def _fail(self, action: Action, reply: Reply) -> None:
        match action:
            case ChangeSubscription(ref) | ListTopics(ref) | ReadHistory(ref):
                self.send(ack(ref, reply))
            case _:
                self.end(wire.TRY_AGAIN_LATER, "unavailable")

    async def _authenticate(self, public_hex: str) -> None:
        session = self._session
        assert session is not None  # noqa: S101 - it asked for this
        # Known as that key's first: a revocation from here on finds this connection.
        self._service.proved(self, session.mesh, public_hex)
        member = await self._service.member(session.mesh, public_hex)
        if member is None:
            self.end(wire.NOT_A_MEMBER, "not_a_member")
            return
        if session.misdirected is not None:
            self._service.note_misdirected(member, session.mesh, session.misdirected)
            self.end(wire.MISDIRECTED, f"{session.misdirected[:60]} is not in mesh.public_hosts")
            return
        if await self._service.mesh(self._slug) != session.mesh:
            self.end(wire.TRY_AGAIN_LATER, SETTINGS_CHANGED)
            return
        history = await self._service.history_known(session.mesh, session.incarnation)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._outlet is not None:
            self._outlet.admit()
        self._act(session.admitted(member, *history))
