"""Joining the stream of a channel without a gap and without a duplicate.

Subscribing registers the subscription in the step in which the owner says where the channel is:
what is after that position is live, what is before it can be rewound, resumed or paged through.
While the past is sent, live frames of that subscription are held (channels 6.2 to 6.4).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.base.clock import Clock
from tidelog.base.errors import OutcomeUnknown, StoreError, Unsendable
from tidelog.base.net.frame import text_frame
from tidelog.channels.front.reads.history_reader import ChannelRef, HistoryReader, Window, pages_of
from tidelog.channels.front.reads.version_data import DataFollower
from tidelog.channels.front.sockets.connection import PUSHED_FRAMES, Connection, ResumedTo, Sending
from tidelog.channels.front.sockets.continuity import Continuity, StreamIds
from tidelog.channels.front.sockets.delivery import Delivery
from tidelog.channels.front.sockets.hot_buffer import HotBuffer
from tidelog.channels.front.sockets.hub import Channel, Hub, Subscription
from tidelog.channels.front.sockets.standing import Standing
from tidelog.channels.messages import (
    Admitted,
    Attach,
    Attached,
    CatchUp,
    CaughtUp,
    Detach,
    Full,
    Join,
    Leave,
    Look,
)
from tidelog.channels.protocol import fault, wire
from tidelog.channels.protocol.actions import Position, ReadHistory, Resume, Rewind, Subscribe
from tidelog.channels.protocol.capabilities import keeps_history
from tidelog.channels.protocol.names import is_cache, kind_of, needs_auth, stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.version import Projector, Version
from tidelog.channels.settings import Channels as ChannelsSettings
from tidelog.channels.settings import set_by
from tidelog.channels.stored import version_of, versions_of
from tidelog.link.ends import FrontEnd
from tidelog.link.following import Following
from tidelog.store.engine import Store

_log = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    """Why a subscribe is refused though the client may subscribe."""

    text: str
    setting: str
    kind: str = "ChannelError"
    status: int = 400


_FULL = _Refusal(
    "channel '{}' has as many members as it may have",
    "channels.max_presence_members",
    "PresenceFull",
    403,
)


class _Joined(NamedTuple):
    """A new subscription, and the position that it goes on from if it was resumed before."""

    subscription: Subscription
    resumed: ResumedTo | None


class Subscribing:
    """Subscribes connections and sends them the past."""

    def __init__(
        self,
        *,
        hub: Hub,
        link: FrontEnd,
        store: Store,
        clock: Clock,
        settings: ChannelsSettings,
        projector: Projector,
        stream_ids: StreamIds,
        continuity: Continuity,
        delivery: Delivery,
        history: HistoryReader,
        hot: HotBuffer | None,
    ) -> None:
        self._hub = hub
        self._frames = hub.frames
        self._link = link
        self._followed = Following()
        """Streams that somebody is subscribed to, or is about to be."""
        self._store = store
        self._clock = clock
        self._settings = settings
        self._projector = projector
        self._stream_ids = stream_ids
        self._continuity = continuity
        self._delivery = delivery
        self._history = history
        self._hot = hot

    # Subscribe.

    async def subscribe(
        self, connection: Connection, wanted: Subscribe, *, is_silent: bool = False
    ) -> None:
        """Subscribe and say so; `is_silent` for a channel the client has not asked for."""
        stream = stream_name(connection.app.id, wanted.channel)
        joined: _Joined | None = None
        join: Join | None = None
        if wanted.member is not None and wanted.channel not in connection.subscriptions:
            # Before the owner lets it in: the others would see a member come and go.
            if (refused := self._refused(connection, stream)) is not None:
                self._abandon(connection, wanted.channel, refused)
                return
            join = Join(stream, wanted.member.user_id, wanted.member.user_info)

        def admitted(answer: Admitted | Full | None, attached: Attached | None) -> None:
            """In the step in which the owner has let it in: nobody comes or goes in between."""
            nonlocal joined
            try:
                joined = self._join(connection, wanted, attached, answer, is_silent=is_silent)
            finally:
                if joined is None and isinstance(answer, Admitted) and join is not None:
                    self._link.tell(Leave(stream, join.user_id))

        def attached(answer: Attached) -> None:
            self._link.passed(answer.position)
            admitted(answer.joined, answer)

        try:
            if keeps_history(self._settings.history, wanted.channel):
                self._followed.want((stream,))
                try:
                    await self._link.reply(Attach(stream, join), Attached, at_once=attached)
                finally:
                    if joined is None:
                        self._leave(stream)
            elif join is not None:
                await self._link.reply(
                    join, Admitted, Full, at_once=lambda answer: admitted(answer, None)
                )
            else:
                admitted(None, None)
        except Unsendable:
            if join is not None:  # it was let in, but its members are too many to be said
                self._link.tell(Leave(stream, join.user_id))
            raise
        if joined is not None and joined.subscription.held is not None:
            try:
                await self._send_past(joined.subscription, joined.resumed, wanted.rewind)
            finally:
                await self._delivery.release(joined.subscription)

    def _leave(self, stream: str) -> None:
        """Somebody does not want a channel any more; the owner is told if nobody does."""
        if gone := self._followed.leave((stream,)):
            self._delivery.leave(stream)
            self._link.tell(Detach(gone))

    def _join(
        self,
        connection: Connection,
        wanted: Subscribe,
        attached: Attached | None,
        admitted: Admitted | Full | None,
        *,
        is_silent: bool,
    ) -> "_Joined | None":
        """Subscribe in one step, in which nothing can be delivered or closed; None if it is not."""
        name = wanted.channel
        stream = stream_name(connection.app.id, name)
        known = connection.subscriptions.get(name)
        if connection.is_closed or known is not None:
            if known is not None and not connection.is_closed and not is_silent:
                known.member = known.member if wanted.member is None else wanted.member
                connection.session.joined(name, known.member)
                self._succeeded(connection, known, None)
            return None
        if not is_silent:
            refused = _FULL if isinstance(admitted, Full) else self._refused(connection, stream)
            if refused is not None:
                self._abandon(connection, name, refused)
                return None
            connection.quota.subscribe()
        channel = self._hub.open_channel(name, stream)
        subscription = Subscription(connection, channel, wanted.member)
        subscription.is_counted = not is_silent
        if attached is not None:
            if channel.state is None:
                channel.state = Standing(attached)
            subscription.attach_serial = channel.state.delivered_history
            subscription.attached_at = channel.state.delivered_serial
        resumed = connection.resumed.pop(name, None)
        failed = None if resumed is None else self._lost_since(channel, resumed)
        if failed is not None:
            resumed = None
        if is_cache(name) or resumed is not None or wanted.rewind is not None:
            subscription.wait()
        connection.subscriptions[name] = subscription
        channel.join(subscription, admitted.members if isinstance(admitted, Admitted) else {})
        connection.session.joined(name, wanted.member)
        if not is_silent:
            self._succeeded(connection, subscription, resumed)
        if failed is not None:
            connection.send(self._frames.resume_failed(failed))
        return _Joined(subscription, resumed)

    def _lost_since(self, channel: Channel, resumed: ResumedTo) -> wire.Failed | None:
        """Why what was resumed before the subscribe cannot be continued, if it cannot."""
        state = channel.state
        stream_id = self._delivery.stream_id(channel)
        if state is None or resumed.stream_id != stream_id:
            return wire.Failed(
                channel=channel.name,
                code="stream_reset",
                reason="stream_id_mismatch",
                expected_stream_id=resumed.stream_id,
                current_stream_id=stream_id,
            )
        if resumed.serial < state.replay_floor:
            return wire.Failed(
                channel=channel.name,
                code="position_expired",
                reason="position_before_retained_floor",
                expected_stream_id=resumed.stream_id,
                current_stream_id=stream_id,
                oldest_available_serial=state.replay_floor + 1,
                newest_available_serial=state.delivered_serial,
            )
        return None

    def _refused(self, connection: Connection, stream: str) -> _Refusal | None:
        """Why a subscribe is one too many for this front, if it is."""
        settings, hub = self._settings, self._hub
        if (
            hub.channel(stream) is None
            and hub.channel_count(connection.app.id) >= settings.max_channels_per_app
        ):
            text = "the app has as many channels as it may have"
            return _Refusal(text, "channels.max_channels_per_app")
        if not connection.quota.may_subscribe():
            text = "too many subscriptions from your address"
            return _Refusal(text, "per_address.max_subscriptions")
        return None

    def _abandon(self, connection: Connection, name: str, refused: _Refusal) -> None:
        connection.session.left(name)
        text = refused.text.format(name) + set_by(refused.setting)
        connection.send(self._frames.error(connection.version, wire.CHANNEL_ERROR, text))
        error = self._frames.subscription_error(
            connection.version, name, text, kind=refused.kind, status=refused.status
        )
        connection.send(error)

    def _succeeded(
        self, connection: Connection, subscription: Subscription, resumed: ResumedTo | None
    ) -> None:
        channel = subscription.channel
        state = channel.state
        serial = None
        stream_id = None
        if state is not None and self._settings.connection_recovery.enabled:
            serial = state.delivered_serial if resumed is None else resumed.serial
            stream_id = self._delivery.stream_id(channel)
        connection.send(
            self._frames.subscription_succeeded(
                connection.version,
                channel.name,
                members=channel.members if channel.is_presence else None,
                attach_serial=subscription.attach_serial,
                stream_id=stream_id,
                serial=serial,
            )
        )

    def unsubscribe(self, connection: Connection, name: str) -> None:
        """End a subscription, and forget what was resumed for one to come."""
        connection.resumed.pop(name, None)
        subscription = connection.subscriptions.get(name)
        if subscription is not None and not connection.is_closed:
            self._delivery.rolling.give(subscription)
        connection.subscriptions.pop(name, None)
        if subscription is not None and subscription.is_counted:
            connection.quota.unsubscribe()
        channel = self._hub.channel(stream_name(connection.app.id, name))
        if channel is None:
            return
        is_left = channel.leave(connection) is not None and channel.state is not None
        if not channel.subscriptions:
            channel.state = None
            self._hub.close_channel(channel)
        if is_left:
            self._leave(channel.stream)

    # The past of a new subscription.

    async def _send_past(
        self, subscription: Subscription, resumed: ResumedTo | None, rewind: Rewind | None
    ) -> None:
        channel, connection = subscription.channel, subscription.connection
        state = channel.state
        if is_cache(channel.name):
            await self._send_cached(subscription, resumed)
        if state is None:
            return
        if resumed is not None:
            await self._catch_up(subscription, resumed)
        if rewind is not None and not connection.is_closed:
            await self._rewind(subscription, rewind)

    async def _send_cached(self, subscription: Subscription, resumed: ResumedTo | None) -> None:
        """The last event that was published over HTTP, or that there is none.

        One that follows the resumed position is about to come in its turn: sent ahead of it, it
        would move the client's position past what it has not seen.
        """
        channel, connection = subscription.channel, subscription.connection
        since = self._clock.now_ms() - int(self._settings.cache_ttl_seconds * 1000)
        found: Sequence[Version] = ()
        if channel.state is not None:
            found = versions_of(
                await self._store.rows("channels_last_event", (channel.stream, since))
            )
        # What is stored may be ahead of what this node has delivered; that comes live.
        last = next(
            (
                version
                for version in found
                if not version.is_client_event
                and version.delivery_serial <= subscription.attached_at
            ),
            None,
        )
        live = self._delivery.last_live(channel.stream, since)
        if live is not None and (last is None or live.committed_at > last.committed_at):
            last = live
        if last is None:
            connection.send(self._frames.cache_miss(connection.version, channel.name))
        elif connection.version == wire.V1:
            connection.send(self._delivery.plain_frame(channel, last))
        elif last is live:
            connection.send(self._projector.live_frame(last, channel.name))
        elif resumed is None or last.delivery_serial <= resumed.serial:
            connection.send(self._delivery.frame(channel, last))

    async def _catch_up(self, subscription: Subscription, resumed: ResumedTo) -> None:
        """What follows the position that was resumed before this subscribe (channels D6)."""
        channel, connection = subscription.channel, subscription.connection
        through, stream_id = subscription.attached_at, resumed.stream_id
        follower = self._delivery.follow_data(channel.stream)
        while resumed.serial < through and not connection.is_closed:
            found = await self._page_after(channel.stream, resumed.serial, through)
            failed = self._lost_since(channel, resumed)
            if failed is not None:
                connection.send(self._frames.resume_failed(failed))
                return
            if not found or not await self._send_versions(
                connection, channel.name, stream_id, found, follower
            ):
                connection.end(wire.RECONNECT)  # emptied on another node: a resume will say so
                return
            resumed = ResumedTo(found[-1].delivery_serial, stream_id)

    async def _page_after(self, stream: str, serial: int, through: int) -> Sequence[Version] | None:
        """The next versions after a serial, as many as are read at once; None if one is gone."""
        limit = min(through - serial, PUSHED_FRAMES)
        entries = await self._store.stream_entries(stream, serial, limit=limit)
        versions = [version for entry in entries if (version := version_of(entry)) is not None]
        expected = range(serial + 1, serial + 1 + len(entries))
        is_whole = bool(entries) and [v.delivery_serial for v in versions] == list(expected)
        return versions if is_whole else None

    async def _send_versions(
        self,
        connection: Connection,
        name: str,
        stream_id: str,
        versions: Sequence[Version],
        follower: DataFollower,
    ) -> bool:
        """Send operations again; False if one of them cannot be told any more."""
        is_full = connection.append_mode == "full"
        sending = Sending(connection)
        for version in versions:
            frame = await self._delivery.replayed_frame(
                name, stream_id, version, follower, is_full=is_full
            )
            if frame is None:
                return False
            await sending.push(frame)
            if connection.is_closed:
                break  # nobody is there to be sent the rest
        await connection.drained()
        return True

    async def _rewind(self, subscription: Subscription, rewind: Rewind) -> None:
        channel, connection = subscription.channel, subscription.connection
        state = channel.state
        if state is None:
            return
        now = self._clock.now_ms()
        most = self._settings.history.max_page_size
        asked = most if rewind.count is None else min(rewind.count, most)
        since = self._history.oldest_time(now)
        if rewind.seconds is not None:
            since = max(since, int(now - rewind.seconds * 1000))
        window = Window(
            low=state.history_floor + 1,
            high=MAX_INTEGER,
            since=since,
            until=MAX_INTEGER,
            limit=asked + 1,
            direction="newest_first",
        )
        listed = await self._history.sizes(channel.stream, window)
        is_cut = len(listed) > asked and (rewind.count is None or rewind.count > most)
        listed = listed[:asked][::-1]
        stream_id = self._delivery.stream_id(channel)
        sending = Sending(connection)
        shown: dict[str, int] = {}
        first = state.history_serial + 1
        last_id = 0
        for page in pages_of(listed):
            for row in await self._history.between(channel.stream, page, window):
                version = row.version
                first = min(first, row.serial)
                shown[version.message_serial] = version.delivery_serial
                last_id = max(last_id, version.committed_id)
                frame = self._projector.frame(version, channel.name, stream_id, is_projection=True)
                await sending.push(text_frame(frame))
        await connection.drained()
        # Rows show the store's latest state. What they show must have left the tail, and so be held
        # here, before one can tell which of the held frames they stand for.
        if last_id > self._link.position:
            await self._catch_up_with_log()
        live_count = await self._release_after(subscription, shown)
        if connection.is_closed or subscription.channel.state is None:
            return
        wanted_more = rewind.count is not None and len(shown) < min(rewind.count, most)
        is_retained = not (wanted_more and first > 1)
        connection.send(
            self._frames.rewind_complete(
                channel.name,
                historical_count=len(shown),
                live_count=live_count,
                complete=not is_cut and is_retained,
                truncated_by_retention=not is_retained,
                truncated_by_limit=is_cut,
            )
        )

    async def _release_after(self, subscription: Subscription, shown: Mapping[str, int]) -> int:
        """Send what was held and was not `shown` already; returns how much that was.

        A row shows its message as it was when it was read, so it stands for every operation on that
        message up to then, and for no other.
        """
        subscription.drop_held(
            lambda version: version.delivery_serial <= shown.get(version.message_serial, 0)
        )
        return await self._delivery.release(subscription)

    # Resume.

    async def resume(self, connection: Connection, wanted: Resume) -> None:
        """Replay what each position misses, then say how it went."""
        recovered: list[wire.Recovered] = []
        failed = [
            wire.Failed(
                channel=position.channel,
                code="continuity_unverifiable",
                reason="not_authorized",
                expected_stream_id=position.stream_id,
            )
            for position in wanted.denied
        ]
        for position in (*wanted.denied, *wanted.positions):
            connection.resumed.pop(position.channel, None)  # the last resume counts
        holding: list[Subscription] = []
        try:
            await self._catch_up_with_log()
            for position in wanted.positions:
                subscription = connection.subscriptions.get(position.channel)
                if subscription is not None:
                    # What is being sent came live before the resume, and goes first.
                    while (sender := self._delivery.sender_of(subscription)) is not None:
                        await asyncio.wait([sender])
                    self._delivery.rolling.give(subscription)
                    subscription.wait()
                    holding.append(subscription)
                outcome = await self._resume_channel(connection, position, subscription)
                if isinstance(outcome, wire.Failed):
                    failed.append(outcome)
                else:
                    recovered.append(outcome)
            for failure in failed:
                connection.send(self._frames.resume_failed(failure))
            connection.send(self._frames.resume_success(recovered, failed))
        finally:
            for subscription in holding:
                await self._delivery.release(subscription)

    async def _resume_channel(
        self, connection: Connection, position: Position, subscription: Subscription | None
    ) -> wire.Recovered | wire.Failed:
        name = position.channel
        stream = stream_name(connection.app.id, name)

        def failure(code: wire.FailureCode, reason: str, state: Standing) -> wire.Failed:
            is_known = subscription is not None
            return wire.Failed(
                channel=name,
                code=code,
                reason=reason,
                expected_stream_id=position.stream_id,
                current_stream_id=self._stream_ids.of(stream, state.epoch) if is_known else None,
                oldest_available_serial=state.replay_floor + 1 if is_known else None,
                newest_available_serial=state.delivered_serial if is_known else None,
            )

        if not keeps_history(self._settings.history, name):
            return wire.Failed(
                channel=name,
                code="continuity_unverifiable",
                reason="history_disabled",
                expected_stream_id=position.stream_id,
            )
        if subscription is None and not connection.may_remember:
            return wire.Failed(
                channel=name,
                code="continuity_unverifiable",
                reason="too_many_positions",
                expected_stream_id=position.stream_id,
            )
        try:
            state = await self._standing(stream)
        except OutcomeUnknown:
            raise  # the owner is gone: the socket ends, and its client comes back with its position
        except StoreError:
            return wire.Failed(
                channel=name, code="persistence_unavailable", reason="store_unavailable"
            )
        stream_id = self._stream_ids.of(stream, state.epoch)
        try:
            broken_by = await self._continuity.broken_by(stream, state.epoch, position)
        except StoreError:
            return failure("persistence_unavailable", "store_unavailable", state)
        if broken_by is not None:
            return wire.Failed(
                channel=name,
                code="stream_reset",
                reason=broken_by,
                expected_stream_id=position.stream_id,
                current_stream_id=stream_id if subscription is not None else None,
            )
        if position.serial > state.delivered_serial:
            return failure("continuity_unverifiable", "position_ahead_of_stream", state)
        # Up to what has left the tail by now: a subscription holds what follows, and whoever
        # subscribes later goes on from here.
        through = state.delivered_serial
        missed = through - position.serial
        if position.serial < state.replay_floor:
            return failure("position_expired", "position_before_retained_floor", state)
        if missed > self._settings.connection_recovery.max_buffer_size:
            return failure("position_expired", "recovery_window_exceeded", state)
        hot: Sequence[Version] | None = None
        if self._hot is not None:
            hot = self._hot.after(stream, position.serial, through, self._clock.now_ms())
        if hot is None and position.stream_id is None:
            # A serial alone says nothing about which stream it is of.
            return failure("continuity_unverifiable", "replay_not_contiguous", state)
        if subscription is None and needs_auth(kind_of(name)):
            # A `stream_id` shows that somebody was let in once. What follows the position, and
            # whether anything does, is for whoever is let in now: see `_catch_up`.
            connection.resumed[name] = ResumedTo(position.serial, stream_id)
            return wire.Recovered(name, "cold", 0, None)
        follower = self._delivery.follow_data(stream)
        last, serial = None, position.serial
        while serial < through and not connection.is_closed:
            try:
                page = hot or await self._page_after(stream, serial, through)
                if page is None or not await self._send_versions(
                    connection, name, stream_id, page, follower
                ):
                    return failure("continuity_unverifiable", "replay_not_contiguous", state)
            except StoreError:
                return failure("persistence_unavailable", "store_unavailable", state)
            last, serial = page[-1], page[-1].delivery_serial
        if subscription is None:
            connection.resumed[name] = ResumedTo(through, stream_id)
        else:
            # What came live before `through` was read is held, and part of the replay.
            subscription.drop_held(lambda version: version.delivery_serial <= through)
        at = None if last is None else wire.ResumedAt(stream_id, through, last.message_id)
        source: wire.Source = "cold" if hot is None else "hot"
        return wire.Recovered(name, source, through - position.serial, at)

    async def _catch_up_with_log(self) -> None:
        """Return when what any node has acknowledged by now has come here."""
        passed = self._link.passed
        question = CatchUp()
        await self._link.reply(question, CaughtUp, at_once=lambda each: passed(each.position))

    async def _standing(self, stream: str) -> Standing:
        """Where a channel is, which somebody here may be subscribed to."""
        channel = self._hub.channel(stream)
        if channel is not None and channel.state is not None:
            return channel.state
        return Standing(await self._link.reply(Look(stream), Attached))

    # History over a socket.

    async def history(self, connection: Connection, wanted: ReadHistory) -> bytes:
        """A page of history for a subscriber.

        Raises:
            Fault: what is wrong with the question.
        """
        subscription = connection.subscriptions.get(wanted.channel)
        state = None if subscription is None else subscription.channel.state
        if subscription is None or state is None:
            raise fault.invalid_input("history needs a subscription to the channel")
        if wanted.query.until_attach and subscription.attach_serial is None:
            raise fault.invalid_input("the subscription has no attach_serial to stop at")
        channel = subscription.channel
        ref = ChannelRef(
            connection.app.id, channel.name, channel.stream, self._delivery.stream_id(channel)
        )
        return await self._history.page(
            ref,
            state,
            wanted.query,
            self._clock.now_ms(),
            attach_serial=subscription.attach_serial,
        )
