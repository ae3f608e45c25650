"""The channels service: the only file of it that touches both the log and connections."""

import asyncio
import os
from collections.abc import Mapping, Sequence

import msgspec

from tidelog.base.clock import Clock
from tidelog.base.serving.address_quota import AddressQuota
from tidelog.base.serving.surface import Conversation, Endpoint, HttpResponse, Upgrade
from tidelog.channels.decide.idempotency import batch_scope
from tidelog.channels.decide.rules import (
    Mode,
    Mutate,
    Publish,
    PublishAnswer,
    PublishContext,
    PublishTarget,
)
from tidelog.channels.decide.state import ChannelState, MessageState
from tidelog.channels.front.api.history import HistoryApi
from tidelog.channels.front.cluster.messages import EndUser, HistoryChanged, Live, Revoked, Summary
from tidelog.channels.front.cluster.nodes import Nodes
from tidelog.channels.front.cluster.other_nodes import OtherNodes
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
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.actions import ClientEvent, PublishEvent, Subscribe
from tidelog.channels.protocol.capabilities import Actor, keeps_history, versions_off
from tidelog.channels.protocol.event_stream import Wanted
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.names import USER_PREFIX, name_fault, stream_name
from tidelog.channels.protocol.requests import (
    Change,
    Mutation,
    MutationResult,
    Publication,
    Published,
)
from tidelog.channels.protocol.runs import is_covered
from tidelog.channels.protocol.session import MESSAGES
from tidelog.channels.protocol.tokens import Claims
from tidelog.channels.protocol.upgrade import parse_upgrade
from tidelog.channels.protocol.version import SURFACE, Projector, position_of
from tidelog.channels.settings import App, ServerSettings
from tidelog.channels.upkeep.erasing import Erasing
from tidelog.channels.upkeep.retention import Retention
from tidelog.channels.upkeep.revoking import Revoking
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.channels.upkeep.streams import Streams
from tidelog.log.committer import Committer
from tidelog.log.decision import Answer, Failure, Names, Refuse, View
from tidelog.log.request import Submission, submit_and_wait, without_failure
from tidelog.store.engine import Store

SWEEP_SECONDS = 1.0
"""How often timeouts are looked at, at most; their accuracy."""

_encode = msgspec.json.Encoder().encode


class Nothing:
    """An item without an effect: it is decided after whatever is queued already."""

    def decide(self, view: View) -> Refuse:
        """See `Item.decide`."""
        del view
        return Refuse(None)


class ChannelsService:
    """Channels on one node."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        settings: ServerSettings,
        clock: Clock,
        log_id: str,
    ) -> None:
        self.settings = settings.channels
        self.committer = committer
        self.store = store
        self.clock = clock
        self._apps_by_key = {app.key: app for app in settings.served_apps}
        self._apps_by_id = {app.id: app for app in settings.served_apps}
        self._apps_by_path = {app.alias: app for app in settings.served_apps if app.alias}
        self._apps_by_path |= self._apps_by_id
        self._tag = log_id.lower()
        self._projector = Projector(self._tag)
        self._states = StateLoader(store, committer.tail, self.settings.max_cached_text_bytes)
        self._ids = MessageIds(os.urandom)
        self.hub = Hub(OtherNodes(), Frames(self._ids))
        self._occupancy = Occupancy(self.hub)
        recovery = self.settings.connection_recovery
        hot = HotBuffer(recovery.max_buffer_size, recovery.buffer_ttl_seconds)
        self._stream_ids = StreamIds(
            log_id, committer.incarnations, lambda app_id: self._apps_by_id[app_id].secret
        )
        self._delivery = Delivery(
            self.hub,
            self._states,
            store,
            self._projector,
            self._stream_ids,
            hot if recovery.enabled else None,
        )
        history = HistoryReader(store, self._projector, self.settings.history)
        self.messages = MessageReader(store, self._projector, self._tag)
        self.subscribing = Subscribing(
            hub=self.hub,
            states=self._states,
            store=store,
            committer=committer,
            clock=clock,
            settings=self.settings,
            projector=self._projector,
            stream_ids=self._stream_ids,
            continuity=Continuity(store, committer.incarnations, self._stream_ids, hot.at),
            delivery=self._delivery,
            history=history,
            hot=hot if recovery.enabled else None,
        )
        self._leaving = Leaving(self.subscribing.unsubscribe)
        self._revoking = Revoking(committer, store, clock, close_connections=self.hub.end_revoked)
        self._nodes = Nodes(
            committer.announcements,
            is_shared=store.is_shared,
            hub=self.hub,
            delivery=self._delivery,
            states=self._states,
            revoking=self._revoking,
        )
        self.erasing = Erasing(
            committer, store, self._states, log_tag=self._tag, tell=self._nodes.tell_erased
        )
        self.history_api = HistoryApi(
            committer=committer,
            store=store,
            states=self._states,
            clock=clock,
            stream_ids=self._stream_ids,
            reader=history,
            erasing=self.erasing,
        )
        self._sweep: asyncio.TimerHandle | None = None
        self.retention = Retention(
            committer,
            store,
            self._states,
            clock,
            self.settings.versioned_messages,
            lambda streams, gone: self._nodes.tell(HistoryChanged(streams, gone)),
            self._revoking,
        )
        self.streams = Streams(
            committer,
            store,
            self._states,
            clock,
            self.settings.ai_transport,
            log_tag=self._tag,
            ids=self._ids,
            is_limited=self._is_limited,
        )
        committer.tail.subscribe(SURFACE, self._delivery.sink)

    @classmethod
    async def open(
        cls, committer: Committer, store: Store, settings: ServerSettings, clock: Clock
    ) -> "ChannelsService":
        """Channels on a running committer."""
        head = await store.head()
        service = cls(committer, store, settings, clock, head.log_id)
        await service._revoking.read()
        await service.retention.open()
        if service.settings.versioned_messages.enabled:
            service.streams.start()
        service.erasing.start()
        await service._nodes.start()
        return service

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
        await self._nodes.tell(EndUser(app.id, user_id, code))

    async def revoke(self, app: App, jti: str | None, client_id: str | None) -> bytes:
        """Revoke tokens, on every node: one, or all that a client has now.

        Stored when it returns. `closed_connections` counts those of this node: the others close
        theirs when they hear of it, which nobody waits for.
        """
        named = (("jti", jti), ("client_id", client_id))
        closed = await self._revoking.revoke(
            app.id, [(kind, value) for kind, value in named if value is not None]
        )
        # A node that cannot be told finds it in the store.
        await asyncio.wait([self._nodes.tell(Revoked())])
        return _encode(
            {"revoked_jti": jti, "revoked_client_id": client_id, "closed_connections": closed}
        )

    def is_revoked(self, app: App, claims: Claims) -> bool:
        """Whether a token was revoked: itself, or its client since it was issued."""
        return self._revoking.covers(app.id, claims)

    # Publishing.

    def _mode(self, channel: str, publication: Publication) -> Mode:
        if publication.is_ephemeral or not keeps_history(self.settings.history, channel):
            return "live"
        return "versioned" if self.settings.versioned_messages.enabled else "history"

    def _is_limited(self, channel: str) -> bool:
        return is_covered(self.settings.ai_transport.channels, channel)

    async def _targets(
        self, app: App, publication: Publication, pinned: list[ChannelState]
    ) -> tuple[PublishTarget, ...]:
        targets = []
        for name in publication.channels:
            stream = stream_name(app.id, name)
            mode = self._mode(name, publication)
            state = None
            if mode != "live":
                state = self._states.channel(stream) or await self._states.load_channel(stream)
                pinned.append(state)
            targets.append(
                PublishTarget(
                    channel=name,
                    stream=stream,
                    mode=mode,
                    state=state,
                    message_id=publication.message_id or self._ids.message(),
                    counts=self._occupancy.counts(stream, publication.info),
                    is_limited=self._is_limited(name),
                    versions_off=versions_off(self.settings, name),
                )
            )
        return tuple(targets)

    async def publish(
        self,
        app: App,
        publications: Sequence[Publication],
        *,
        request_key: str | None,
        is_batch: bool,
    ) -> Published | Fault:
        """Publish, all in one request; see `Publish` for what that means."""
        pinned: list[ChannelState] = []
        key = (batch_scope(app.id), request_key) if is_batch and request_key else None
        ttl_ms = int(self.settings.idempotency_ttl_seconds * 1000)
        context = PublishContext(count=len(publications), is_batch=is_batch, key=key, ttl_ms=ttl_ms)
        try:
            items = []
            for index, publication in enumerate(publications):
                publisher = None
                if publication.socket_id is not None:
                    publisher = await self._nodes.socket(app.id, publication.socket_id)
                items.append(
                    Publish(
                        publication,
                        await self._targets(app, publication, pinned),
                        app_id=app.id,
                        context=context,
                        index=index,
                        states=self._states,
                        log_tag=self._tag,
                        limits=self.settings.ai_transport,
                        ttl_ms=ttl_ms,
                        client_id=None if publisher is None else publisher.actor.client_id,
                    )
                )
            answers = await self._commit(items, key)
        finally:
            for state in pinned:
                self._states.release(state)
        body = b"{}"
        for index, answer in enumerate(answers):
            if isinstance(answer, Fault):
                return answer.at(index) if is_batch else answer
            body = answer.body or body
        return Published(body)

    async def _commit(
        self, items: Sequence[Publish], key: tuple[str, str] | None
    ) -> Sequence[PublishAnswer | Fault]:
        """Submit publishes and wait; events that are not kept are delivered in their turn.

        No entry carries those to the other nodes, so this returns when the nodes were told.
        """
        names = [item.names() for item in items]
        union = Names(
            dedupe=tuple(k for n in names for k in n.dedupe) + (() if key is None else (key,)),
            streams=tuple(stream for n in names for stream in n.streams),
        )
        size = 256 + sum(_size(item.publication) for item in items)
        answered: asyncio.Future[Sequence[Answer | Failure]]
        answered = asyncio.get_running_loop().create_future()
        told: list[asyncio.Future[int]] = []

        def hand_over(answers: Sequence[Answer | Failure]) -> None:
            for answer in answers:
                if isinstance(answer, PublishAnswer):
                    for event in answer.live:
                        version = live_version(event, self.clock.now_ms())
                        self._delivery.live(event.target.stream, version)
                        told.append(self._nodes.tell(Live(event.target.stream, version)))
            if not answered.done():
                answered.set_result(answers)

        self.committer.submit(Submission(union, size, items, hand_over))
        answers = without_failure(await answered)
        for each in told:
            await each
        return answers

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
        pinned: list[ChannelState] = []
        ttl_ms = int(self.settings.idempotency_ttl_seconds * 1000)
        try:
            item = Publish(
                publication,
                await self._targets(app, publication, pinned),
                app_id=app.id,
                context=PublishContext(count=1, is_batch=False, key=None, ttl_ms=ttl_ms),
                index=0,
                states=self._states,
                log_tag=self._tag,
                limits=self.settings.ai_transport,
                ttl_ms=ttl_ms,
                client_id=session.client_id,
                attributed_to=user_id,
                is_client_event=True,
                own_run=own_run,
            )
            [answer] = await self._commit([item], None)
        finally:
            for state in pinned:
                self._states.release(state)
        return answer if isinstance(answer, Fault) else None

    # Mutations.

    async def mutate(self, app: App, mutation: Mutation) -> MutationResult | Fault:
        """Append the next version of a message."""
        stream = stream_name(app.id, mutation.channel)
        number = position_of(mutation.message_serial, self._tag)
        if number is None:
            return fault.not_found(mutation.message_serial, mutation.channel)
        channel = self._states.channel(stream) or await self._states.load_channel(stream)
        message: MessageState | None = None
        try:
            message = self._states.message(number) or (
                await self._states.load_message(stream, number)
            )
            if message is None or message.latest.message_serial != mutation.message_serial:
                return fault.not_found(mutation.message_serial, mutation.channel)
            item = Mutate(
                mutation,
                author=app.id,
                stream=stream,
                channel=channel,
                message=message,
                actor=await self._actor(app, mutation.socket_id, mutation.client_id),
                message_id=self._ids.message(),
                log_tag=self._tag,
                limits=self.settings.ai_transport,
                is_limited=self._is_limited(mutation.channel),
                is_shared=self.store.is_shared,
            )
            size = _bytes_to_write(mutation, message)
            answers = await submit_and_wait(self.committer, item.names(), size, (item,))
            [answer] = without_failure(answers)
            result: MutationResult | Fault = answer
            return result
        except Fault as refused:
            return refused
        finally:
            self._states.release(channel)
            if message is not None:
                self._states.release_message(message)

    async def _actor(self, app: App, socket_id: str | None, client_id: str | None) -> Actor | None:
        """Who a request acts for: points 1 to 3 of channels 7.3; None for the app's own server."""
        if socket_id is None:
            return None
        socket = await self._nodes.socket(app.id, socket_id)
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
        await submit_and_wait(self.committer, Names(), 64, (Nothing(),))
        stream = stream_name(app.id, channel)
        self._delivery.summary(stream, summary)
        await self._nodes.tell(Summary(stream, summary))
        return summary

    # Who is there.

    def channels(self, app: App, prefix: str, info: frozenset[str]) -> bytes:
        """The occupied channels."""
        return self._occupancy.channels(app.id, prefix, info)

    def channel(self, app: App, channel: str, info: frozenset[str]) -> bytes:
        """One channel."""
        return self._occupancy.channel(stream_name(app.id, channel), info)

    def channel_users(self, app: App, channel: str) -> bytes:
        """The members of a presence channel."""
        return self._occupancy.users(stream_name(app.id, channel))


def _bytes_to_write(mutation: Mutation, message: MessageState) -> int:
    """About what a change makes the store write."""
    extras = mutation.patch.extras
    is_other_status = not isinstance(extras, Change)
    size = 512 + (len(extras) if isinstance(extras, bytes) else 0)
    size += len(mutation.metadata or b"") + len(mutation.description or "")
    return size + message.bytes_to_write(mutation.data_bytes, is_other_status=is_other_status)


def _size(publication: Publication) -> int:
    """About what a publish holds in memory while it waits."""
    each = len(publication.data) + len(publication.extras or b"") + 256
    return each * len(publication.channels)
