"""What becomes of an entry that cannot be delivered."""

from types import SimpleNamespace
from typing import Any, cast

from tidelog.channels.front.sockets.delivery import Delivery
from tidelog.channels.messages import Entry
from tidelog.channels.protocol import wire


class _Subscriber:
    def __init__(self) -> None:
        self.ended: list[int] = []

    def end(self, code: int) -> None:
        self.ended.append(code)


def entry(body: bytes | None) -> Entry:
    """An entry of one channel."""
    serial = "0" * 20 + ":log:" + "1".zfill(20)
    return Entry(1, 1, "channels/a/room", 1, "message.create", serial, body)


def test_what_cannot_be_delivered_sends_its_subscribers_back() -> None:
    """An emptied or unreadable entry ends its channel's sockets with 4200, never a silent gap."""
    for body in (None, b"not json"):
        subscriber = _Subscriber()
        channel = SimpleNamespace(subscriptions={subscriber: None})
        hub = SimpleNamespace(channel=lambda _, channel=channel: channel)
        nothing: Any = None
        delivery = Delivery(cast("Any", hub), nothing, nothing, nothing, None)
        delivery.deliver([entry(body)])
        assert subscriber.ended == [wire.RECONNECT]
