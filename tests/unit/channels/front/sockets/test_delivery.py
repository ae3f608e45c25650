"""What becomes of an entry that cannot be delivered."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import Raw

from tidelog.channels.front.sockets.delivery import Delivery
from tidelog.channels.front.sockets.hot_buffer import HotBuffer
from tidelog.channels.front.sockets.texts import Texts
from tidelog.channels.messages import Entry
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import Body, encode_body


class _Subscriber:
    def __init__(self) -> None:
        self.ended: list[int] = []

    def end(self, code: int) -> None:
        self.ended.append(code)


def entry(body: bytes | None, at: int = 1) -> Entry:
    """An entry of one channel: a message that begins, or goes on."""
    serial = "0" * 20 + ":log:" + "1".zfill(20)
    kind = CREATE if at == 1 else APPEND
    return Entry(at, at, "channels/a/room", at, kind, serial, body)


def created() -> bytes:
    """The body of a message that begins."""
    return encode_body(Body(message_id="i", history_serial=1, data=Raw(b'"a"')))


def test_nothing_stays_in_memory_that_may_have_been_erased() -> None:
    """Another node may have erased it while this one did not hear: the store is asked again."""
    nobody = SimpleNamespace(subscriptions={}, state=None, rollups={})
    hub = SimpleNamespace(channel=lambda _: nobody)
    nothing: Any = None
    texts, hot = Texts(nothing, 10**6, is_followed=lambda _: True), HotBuffer(10, 60, 2**25)
    delivery = Delivery(cast("Any", hub), texts, nothing, nothing, hot)
    delivery.deliver([entry(created())])
    delivery._keep_made(("id", 1), b"frame")
    assert hot.at("channels/a/room", 1) is not None
    delivery.distrust()
    assert hot.at("channels/a/room", 1) is None
    assert (hot._bytes, texts._bytes, delivery._made_bytes) == (0, 0, 0)
    assert not delivery._made


def test_what_cannot_be_delivered_sends_its_subscribers_back() -> None:
    """An emptied or unreadable entry ends its channel's sockets with 4200, never a silent gap.

    Nor is there one in the text of its message, which the next version would be sent with.
    """
    for body in (None, b"not json"):
        subscriber = _Subscriber()
        nobody = SimpleNamespace(subscriptions={}, state=None, rollups={})
        channel = SimpleNamespace(subscriptions={subscriber: None}, rollups={})
        channels = [nobody, channel]
        hub = SimpleNamespace(
            channel=lambda _, channels=channels: channels.pop(0) if channels[1:] else channels[0]
        )
        nothing: Any = None
        texts = Texts(nothing, 10**6, is_followed=lambda _: True)
        delivery = Delivery(cast("Any", hub), texts, nothing, nothing, None)
        delivery.deliver([entry(created()), entry(body, 2)])
        assert subscriber.ended == [wire.RECONNECT]
        assert not texts._texts


def test_what_nobody_is_here_for_is_kept_and_not_read(caplog: pytest.LogCaptureFixture) -> None:
    """A front may follow every channel of a log, for whoever comes back, and has few of them."""
    nothing: Any = None
    hub = SimpleNamespace(channel=lambda _: None)
    hot = HotBuffer(max_versions=4, ttl_seconds=10, max_bytes=2**25)
    texts = Texts(nothing, 1000, is_followed=lambda _: True)
    delivery = Delivery(cast("Any", hub), texts, nothing, nothing, hot)
    delivery.deliver([entry(b"not json")])
    assert not caplog.records
    with pytest.raises(msgspec.DecodeError):
        hot.at("channels/a/room", 1)
