"""The front's half of channels: connections, subscriptions, reads and delivery.

It decides nothing and writes nothing: what the log is asked for, and what it says, crosses the link
(`tidelog.channels.messages`).
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from tidelog.base.clock import Clock
from tidelog.base.data.incarnation import Incarnations
from tidelog.base.errors import TooLargeToSend
from tidelog.base.serving.address_quota import AddressQuota
from tidelog.base.serving.surface import Conversation, Endpoint, HttpResponse, Upgrade
from tidelog.base.told import Told
from tidelog.base.until_told import until_told
from tidelog.channels import messages
from tidelog.channels.front.api.history import HistoryApi
from tidelog.channels.front.reads.history_reader import HistoryReader
from tidelog.channels.front.reads.message_reader import MessageReader
from tidelog.channels.front.sockets.connection import Connection
from tidelog.channels.front.sockets.continuity import Continuity, StreamIds
from tidelog.channels.front.sockets.delivery import Delivery, live_version
from tidelog.channels.front.sockets.hot_buffer import HotBuffer
from tidelog.channels.front.sockets.hub import Hub
from tidelog.channels.front.sockets.leaving import Leaving
from tidelog.channels.front.sockets.listening import Listening
from tidelog.channels.front.sockets.occupancy import Occupancy
from tidelog.channels.front.sockets.subscribing import Subscribing
from tidelog.channels.front.sockets.texts import Texts
from tidelog.channels.messages import (
    CloseStream,
    CloseUser,
    Disconnect,
    Distrust,
    Done,
    Entries,
    Erased,
    Event,
    Floors,
    Forget,
    Forgotten,
    Hello,
    Identified,
    Identify,
    Known,
    Live,
    MemberAdded,
    MemberRemoved,
    MemberUpdated,
    Refused,
    Revoke,
    Revoked,
    SocketFacts,
    StreamClosed,
    Summarize,
    Summary,
    Target,
    Welcome,
    WhoHas,
)
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.actions import ClientEvent, PublishEvent, Subscribe
from tidelog.channels.protocol.capabilities import Actor, keeps_history, versions_off
from tidelog.channels.protocol.event_stream import Wanted
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.names import USER_PREFIX, name_fault, stream_name
from tidelog.channels.protocol.requests import (
    Asked,
    ForgetTarget,
    Mode,
    Mutation,
    MutationResult,
    Publication,
    Published,
)
from tidelog.channels.protocol.revocations import Revocation, Revocations
from tidelog.channels.protocol.runs import is_covered
from tidelog.channels.protocol.session import MESSAGES
from tidelog.channels.protocol.tokens import Claims
from tidelog.channels.protocol.upgrade import parse_upgrade
from tidelog.channels.protocol.version import Projector
from tidelog.channels.settings import App, ServerSettings
from tidelog.link.ends import FrontEnd
from tidelog.link.message import Failed, Message, NotSent
from tidelog.store.engine import Store

SWEEP_SECONDS = 1.0
"""How often timeouts are looked at, at most; their accuracy."""

A = TypeVar("A", bound=Message)
P = TypeVar("P", messages.Published, messages.Mutated)
F = TypeVar("F")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class ChannelsService:
    """The sockets of channels, on a link to the owner of the log and a store to read from."""

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        settings: ServerSettings,
        clock: Clock,
        welcome: Welcome,
    ) -> None:
        self.link = link
        self.settings = settings.channels
        self.store = store
        self.clock = clock
        self._apps_by_key = {app.key: app for app in settings.served_apps}
        self._apps_by_id = {app.id: app for app in settings.served_apps}
        self._apps_by_path = {app.alias: app for app in settings.served_apps if app.alias}
        self._apps_by_path |= self._apps_by_id
        self.log_tag = welcome.log_id.lower()
        self._revoked = Revocations()
        self._projector = Projector(self.log_tag)
        self.hub = Hub(Frames(MessageIds(os.urandom)), link.tell)
        self.occupancy = Occupancy(link)
        recovery = self.settings.connection_recovery
        hot = HotBuffer(
            recovery.max_buffer_size, recovery.buffer_ttl_seconds, recovery.buffer_bytes
        )
        incarnations = Incarnations(welcome.incarnations)
        self._stream_ids = StreamIds(
            welcome.log_id, incarnations, lambda app_id: self._apps_by_id[app_id].secret
        )
        texts = Texts(
            store,
            self.settings.max_cached_text_bytes,
            # As `open` asks for: all of them, or those that somebody is subscribed to.
            is_followed=lambda stream: recovery.enabled or self.hub.channel(stream) is not None,
        )
        self._delivery = Delivery(
            self.hub,
            texts,
            self._projector,
            self._stream_ids,
            hot if recovery.enabled else None,
        )
        history = HistoryReader(store, self._projector, self.settings.history)
        self.messages = MessageReader(store, self._projector, self.log_tag)
        self.subscribing = Subscribing(
            hub=self.hub,
            link=link,
            store=store,
            clock=clock,
            settings=self.settings,
            projector=self._projector,
            stream_ids=self._stream_ids,
            continuity=Continuity(store, incarnations, self._stream_ids, hot.at),
            delivery=self._delivery,
            history=history,
            hot=hot if recovery.enabled else None,
        )
        self._leaving = Leaving(self.subscribing.unsubscribe)
        self.history_api = HistoryApi(
            link=link,
            store=store,
            clock=clock,
            stream_ids=self._stream_ids,
            reader=history,
        )
        self._sweep: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Task[None]] = set()
        """Questions to the owner that something has to be found out for first."""

    @classmethod
    async def open(
        cls,
        link: FrontEnd,
        store: Store,
        settings: ServerSettings,
        clock: Clock,
    ) -> "ChannelsService":
        """A service that follows the log."""
        service: ChannelsService
        early: list[Message] = []
        link.hear = early.append

        def welcomed(welcome: Welcome) -> None:
            nonlocal service
            service = cls(link, store, settings, clock, welcome)
            link.passed(welcome.position)
            link.hear = service._heard
            for message in early:
                service._heard(message)

        hello = Hello(follows_all=settings.channels.connection_recovery.enabled)
        await link.reply(hello, Welcome, at_once=welcomed)
        return service

    def _heard(self, message: Message) -> None:
        """What the owner says without being asked."""
        if isinstance(message, Entries):  # mostly
            self._delivery.deliver(message.entries)
            self.link.passed(message.position)
            return
        try:
            self._take(message)
        except Exception:  # noqa: BLE001 - a mistake of ours is not the owner's
            _log.exception("a %s could not be taken", type(message).__name__)

    def _take(self, message: Message) -> None:
        match message:
            case Live():
                self._delivery.live(message.stream, live_version(message))
            case Summary(stream, summary):
                self._delivery.summary(stream, summary)
            case Floors(stream):
                channel = self.hub.channel(stream)
                if channel is not None and channel.state is not None:
                    channel.before_frame()  # what is held is of the epoch that ends
                    channel.state.rise(message)
            case Erased():
                self._delivery.forget(message)
            case Revoked(revocations):
                self._close_revoked(revocations)
            case Distrust():
                self._delivery.distrust()
            case CloseUser(app_id, user_id, code):
                self.hub.end_user(app_id, user_id, code)
            case WhoHas(question, app_id, socket_id):
                self.link.tell(Known(question, self.hub.facts(app_id, socket_id)))
            case MemberAdded() | MemberRemoved() | MemberUpdated():
                self._take_presence(message)

    def _take_presence(self, message: MemberAdded | MemberRemoved | MemberUpdated) -> None:
        channel = self.hub.channel(message.stream)
        if channel is None:
            return  # its last member here has left meanwhile
        match message:
            case MemberAdded(_, user_id, user_info):
                channel.added(user_id, user_info)
            case MemberRemoved(_, user_id):
                channel.removed(user_id)
            case MemberUpdated(_, user_id, user_info):
                channel.updated(user_id, user_info)

    @property
    def apps(self) -> Mapping[str, App]:
        """By key."""
        return self._apps_by_key

    # Connections.

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`."""
        return (
            Endpoint(
                "/app/{key}",
                self._accept,
                max_message_bytes=self.settings.max_message_bytes,
                heartbeat=False,
                slow_consumer_code=wire.OVER_CAPACITY,
                shutdown_code=wire.RECONNECT,
            ),
        )

    def _accept(self, upgrade: Upgrade) -> Conversation | HttpResponse:
        options = parse_upgrade(upgrade.query_string)
        if isinstance(options, HttpResponse):
            return options
        app = self._apps_by_key.get(upgrade.params["key"])
        return Connection(self, app, options, self._new_socket_id(app), upgrade.quota)

    def app(self, app_id: str) -> App | None:
        """The app that a path names."""
        return self._apps_by_path.get(app_id)

    def listener(
        self, app: App, wanted: Wanted, claims: Claims | None, quota: AddressQuota
    ) -> Listening:
        """A connection that is sent a channel as events, and is yet to be opened.

        Raises:
            Refused: it may not be sent that channel.
            Fault: the app has as many connections as it may have.
        """
        if self.refusal_code(app) is not None:
            raise fault.backpressure(MESSAGES[wire.OVER_QUOTA])
        return Listening(self, app, wanted, claims, self._new_socket_id(app), quota)

    def _new_socket_id(self, app: App | None) -> str:
        while True:
            number = int.from_bytes(os.urandom(8), "big")
            socket_id = f"{number >> 32}.{number & 0xFFFFFFFF}"
            if app is None or self.hub.socket(app.id, socket_id) is None:
                return socket_id

    def refusal_code(self, app: App | None) -> int | None:
        """Why a connection to an app does not begin, if it does not (channels D15)."""
        if app is None:
            return wire.APP_UNKNOWN
        if not app.enabled:
            return wire.APP_DISABLED
        if self.hub.count(app.id) >= app.max_connections:
            return wire.OVER_QUOTA
        return None

    def opened(self, connection: Connection) -> None:
        """Watch over a connection."""
        self.hub.add(connection)
        if self._sweep is None:
            self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        shortest = min(self.settings.activity_timeout_seconds, self.settings.pong_timeout_seconds)
        pause = min(SWEEP_SECONDS, shortest / 4)
        self._sweep = asyncio.get_running_loop().call_later(pause, self._look_after)

    def _look_after(self) -> None:
        now = asyncio.get_running_loop().time()
        alive = False
        for connection in self.hub:
            alive = True
            connection.look_after(now)
        self._sweep = None
        if alive:
            self._schedule_sweep()

    def closed(self, connection: Connection) -> None:
        """Forget a connection at once, and its subscriptions in time."""
        self.hub.remove(connection)
        self._leaving.add(connection)

    def unsubscribe(self, connection: Connection, channel: str) -> None:
        """End a subscription."""
        self.subscribing.unsubscribe(connection, channel)

    async def signed_in(self, connection: Connection, user_id: str) -> None:
        """A connection is a user's: it gets what is sent to that user from now on."""
        self.hub.signed_in(connection, user_id)
        channel = USER_PREFIX + user_id
        if name_fault(channel, self.settings.max_channel_name_bytes) is None:
            wanted = Subscribe(channel, None, None)
            await self.subscribing.subscribe(connection, wanted, is_silent=True)

    async def terminate(self, app: App, user_id: str) -> None:
        """Close a user's connections for good, on every node."""
        await self._end_user(app, user_id, wire.UNAUTHORIZED)

    async def force_reconnect(self, app: App, user_id: str) -> None:
        """Close a user's connections, on every node; they come back at once."""
        await self._end_user(app, user_id, wire.RECONNECT)

    async def _end_user(self, app: App, user_id: str, code: int) -> None:
        self.hub.end_user(app.id, user_id, code)
        await self.link.reply(Disconnect(app.id, user_id, code), Done)

    async def socket(self, app_id: str, socket_id: str) -> SocketFacts | None:
        """Who a socket is; None if it is connected nowhere.

        Raises:
            QueueFull: nobody knows.
            StoreError: other nodes cannot be asked.
        """
        here = self.hub.facts(app_id, socket_id)
        if here is not None:
            return here
        return (await self.link.reply(Identify(app_id, socket_id), Identified)).socket

    async def revoke(self, app: App, jti: str | None, client_id: str | None) -> bytes:
        """Revoke tokens, on every node: one, or all that a client has now.

        Stored when it returns. `closed_connections` counts those of this front: the others close
        theirs when they hear of it, which nobody waits for.
        """
        named = (("jti", jti), ("client_id", client_id))
        closed = 0

        def revoked(answer: Revoked | Refused) -> None:
            nonlocal closed
            if isinstance(answer, Revoked):
                closed = self._close_revoked(answer.revocations)

        question = Revoke(
            app.id, tuple((kind, value) for kind, value in named if value is not None)
        )
        await self._asked(question, Revoked, revoked)
        return _encode(
            {"revoked_jti": jti, "revoked_client_id": client_id, "closed_connections": closed}
        )

    def _close_revoked(self, revocations: Sequence[Revocation]) -> int:
        """Close the connections that this affects; returns how many they are."""
        self._revoked.prune(self.clock.now_ms())
        apps = {each.app_id for each in revocations if self._revoked.add(each)}
        return sum(self.hub.end_revoked(app_id, self._revoked) for app_id in apps)

    def is_revoked(self, app: App, claims: Claims) -> bool:
        """Whether a token was revoked: itself, or its client since it was issued."""
        return self._revoked.covers(app.id, claims)

    async def _asked(
        self, question: Message, kind: type[A], at_once: Callable[[Any], None] | None = None
    ) -> A:
        """What the owner answers.

        Raises:
            Fault: it refuses.
        """
        answer = await self.link.answer(question, at_once)
        if not isinstance(answer, kind):
            raise _refusal(answer)
        return answer

    # Publishing.

    def _mode(self, channel: str, publication: Publication) -> Mode:
        if publication.is_ephemeral or not keeps_history(self.settings.history, channel):
            return "live"
        return "versioned" if self.settings.versioned_messages.enabled else "history"

    def _targets(self, app: App, publication: Publication) -> tuple[Target, ...]:
        settings = self.settings
        return tuple(
            [
                Target(
                    name,
                    self._mode(name, publication),
                    is_covered(settings.ai_transport.channels, name),
                    versions_off(settings, name),
                )
                for name in publication.channels
            ]
        )

    async def publish(
        self,
        app: App,
        publications: Sequence[Publication],
        *,
        request_key: str | None,
        is_batch: bool,
    ) -> Published | Fault:
        """As `begin_publish`."""
        begin = partial(
            self.begin_publish, app, publications, request_key=request_key, is_batch=is_batch
        )
        try:
            return Published(await until_told(lambda told: begin(told=told)))
        except Fault as refused:
            return refused

    def begin_publish(
        self,
        app: App,
        publications: Sequence[Publication],
        *,
        request_key: str | None,
        is_batch: bool,
        told: Told[bytes],
    ) -> None:
        """Publish, all in one request; see `decide.rules.Publish` for what that means.

        `told` takes the response when the entries have come here too, or why there is none.
        """
        clients: list[str | None] = []
        for publication in publications:
            publisher = None
            if publication.socket_id is not None:
                publisher = self.hub.facts(app.id, publication.socket_id)
                if publisher is None:
                    break
            clients.append(None if publisher is None else publisher.actor.client_id)
        key = request_key if is_batch and request_key else None

        def ask(clients: Sequence[str | None]) -> None:
            events = tuple(
                [
                    Event(publication, self._targets(app, publication), client_id)
                    for publication, client_id in zip(publications, clients, strict=True)
                ]
            )
            question = messages.Publish(app.id, events, is_batch, key)
            self.link.ask(question, partial(self._answered, messages.Published, told, _body))

        if len(clients) == len(publications):
            ask(clients)
        else:
            self._ask_later(self._clients(app, publications), ask, told)

    async def _clients(self, app: App, publications: Sequence[Publication]) -> list[str | None]:
        """In whose name each is published, by its socket, wherever that is connected."""
        clients = []
        for publication in publications:
            publisher = None
            if publication.socket_id is not None:
                publisher = await self.socket(app.id, publication.socket_id)
            clients.append(None if publisher is None else publisher.actor.client_id)
        return clients

    def _ask_later(
        self, found: Coroutine[Any, Any, F], ask: Callable[[F], None], told: Told[Any]
    ) -> None:
        """Ask once it is found out what to ask."""

        async def ask_then() -> None:
            try:
                ask(await found)
            except Exception as error:  # noqa: BLE001 - for whoever waits
                told(error)

        task = asyncio.create_task(ask_then())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _answered(
        self, kind: type[P], told: Told[T], read: Callable[[P], T], answer: Message
    ) -> None:
        """Tell what the owner answered, once what it appended has come here too."""
        if isinstance(answer, kind):
            self.link.when_reached(answer.position, lambda: told(read(answer)))
            return
        try:
            told(_refusal(answer))
        except Exception as error:  # noqa: BLE001 - for whoever waits
            told(error)

    async def _commit(self, question: messages.Publish) -> messages.Published | Fault:
        """Let the owner commit; returns when the entries have come here too."""
        answer = await self.link.answer(question)
        if not isinstance(answer, messages.Published):
            return _refusal(answer)
        if answer.position > self.link.position:
            await self.link.reach(answer.position)
        return answer

    async def client_event(self, connection: Connection, event: ClientEvent) -> Fault | None:
        """Publish an event that a client sent to a channel it is subscribed to."""
        publication = Publication(
            name=event.event,
            data=event.data,
            data_bytes=len(event.data),
            channels=(event.channel,),
        )
        return await self._publish_from(connection, publication, event.user_id)

    async def publish_event(self, connection: Connection, event: PublishEvent) -> Fault | None:
        """Publish an event of a run that a client sent."""
        return await self._publish_from(
            connection, event.publication, event.user_id, own_run=event.own_run
        )

    async def _publish_from(
        self,
        connection: Connection,
        publication: Publication,
        user_id: str | None,
        *,
        own_run: str | None = None,
    ) -> Fault | None:
        """Publish in the name of a socket, which gets it too if it wants to."""
        app, session = connection.app, connection.session
        if connection.version == wire.V1 or not session.echo:
            publication = msgspec.structs.replace(publication, socket_id=connection.socket_id)
        event = Event(
            publication,
            self._targets(app, publication),
            client_id=session.client_id,
            attributed_to=user_id,
            is_client_event=True,
            own_run=own_run,
        )
        answer = await self._commit(messages.Publish(app.id, (event,)))
        return answer if isinstance(answer, Fault) else None

    # Mutations.

    async def mutate(self, app: App, mutation: Mutation) -> MutationResult | Fault:
        """As `begin_mutation`."""
        try:
            return await until_told(partial(self.begin_mutation, app, mutation))
        except Fault as refused:
            return refused

    def begin_mutation(self, app: App, mutation: Mutation, told: Told[MutationResult]) -> None:
        """Append the next version of a message; `told` as of `begin_publish`."""

        def ask(actor: Actor | Refused | None) -> None:
            refused = actor if isinstance(actor, Refused) else None
            question = messages.Mutate(
                app.id, mutation, None if isinstance(actor, Refused) else actor, refused
            )
            self.link.ask(question, partial(self._answered, messages.Mutated, told, _result))

        if mutation.socket_id is None:
            ask(None)
        else:
            self._ask_later(self._mutating(app, mutation), ask, told)

    async def _mutating(self, app: App, mutation: Mutation) -> Actor | Refused | None:
        """In whose name a mutation is made, or why in nobody's."""
        try:
            return await self._actor(app, mutation.socket_id, mutation.client_id)
        except Fault as refused:
            return Refused.of(refused)

    async def _actor(self, app: App, socket_id: str | None, client_id: str | None) -> Actor | None:
        """Who a request acts for: points 1 to 3 of channels 7.3; None for the app's own server."""
        if socket_id is None:
            return None
        socket = await self.socket(app.id, socket_id)
        if socket is None:
            raise fault.auth_failed(f"Mutation actor socket '{socket_id}' is not connected")
        if socket.version != wire.V2:
            raise fault.auth_failed("Mutation actor socket must use protocol V2")
        actor = socket.actor
        if client_id is not None:
            if actor.client_id is None:
                raise fault.auth_failed(
                    "Mutation actor socket is not signed in with an identified client"
                )
            if actor.client_id != client_id:
                raise fault.auth_failed(
                    f"Requested client_id '{client_id}' does not match authenticated actor "
                    f"'{actor.client_id}'"
                )
        return actor

    # Summaries.

    async def emit_summary(
        self, app: App, channel: str, message_serial: str, socket_id: str | None
    ) -> bytes:
        """Send the summary to the V2 subscribers of its channel, after what is queued already."""
        latest = await self.messages.latest(app, channel, message_serial)
        actor = await self._actor(app, socket_id, None)
        if actor is not None and not (
            actor.capabilities is not None
            and actor.capabilities.allows("message_update_any", channel)
        ):
            raise fault.auth_failed(
                f"Connection is not allowed to summary message on channel '{channel}'"
            )
        summary = self._projector.summary(latest)
        await self.link.reply(Summarize(stream_name(app.id, channel), summary), Done)
        return summary

    # Erasing.

    async def forget(self, app_id: str, target: ForgetTarget, asked: Asked | None) -> bytes:
        """Erase something, or say how far that has come if it is not asked for now."""
        answer = await self._asked(Forget(app_id, target, asked), Forgotten)
        return _encode({"ok": True, "complete": answer.is_complete})

    async def close_stream(
        self, app_id: str, channel: str, message_serial: str, silent_ms: int
    ) -> bool:
        """End the stream of a message, if nobody has written to it for so long."""
        question = CloseStream(app_id, channel, message_serial, silent_ms)
        return (await self._asked(question, StreamClosed)).is_closed

    # Who is there.

    async def channels(self, app: App, prefix: str, info: frozenset[str]) -> bytes:
        """The occupied channels."""
        return await self.occupancy.channels(app.id, prefix, info)

    async def channel(self, app: App, channel: str, info: frozenset[str]) -> bytes:
        """One channel."""
        return await self.occupancy.channel(stream_name(app.id, channel), info)

    async def channel_users(self, app: App, channel: str) -> bytes:
        """The members of a presence channel."""
        return await self.occupancy.users(stream_name(app.id, channel))


def _body(answer: messages.Published) -> bytes:
    return answer.body


def _result(answer: messages.Mutated) -> MutationResult:
    return answer.result


def _refusal(answer: Message) -> Fault:
    """Why something is refused; raises what a `Failed` says."""
    if isinstance(answer, NotSent):
        is_large = isinstance(answer.raised(), TooLargeToSend)
        refused = fault.payload_too_large if is_large else fault.invalid_input
        return refused(f"the request was not taken: {answer.text}")
    if isinstance(answer, Failed):
        raise answer.raised()
    assert isinstance(answer, Refused), answer  # noqa: S101 - both halves are ours
    return answer.fault()
