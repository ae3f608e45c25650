"""How many are there, over all nodes: what publishes and the HTTP API tell of channels."""

import msgspec

from tidelog.channels.front.sockets.hub import Hub
from tidelog.channels.protocol.names import ChannelKind, kind_of, split_stream, stream_name

_encode = msgspec.json.Encoder().encode


class Occupancy:
    """Counts and names of who is there; returned as JSON."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def counts(self, stream: str, info: frozenset[str]) -> dict[str, int]:
        """What `info` asks to know of a channel."""
        counts: dict[str, int] = {}
        if "subscription_count" in info:
            counts["subscription_count"] = self._hub.subscription_count(stream)
        if "user_count" in info and kind_of(split_stream(stream)[1]) is ChannelKind.PRESENCE:
            counts["user_count"] = len(self._hub.member_ids(stream))
        return counts

    def channels(self, app_id: str, prefix: str, info: frozenset[str]) -> bytes:
        """The occupied channels of an app."""
        names = self._hub.occupied(app_id, prefix)
        return _encode(
            {"channels": {name: self.counts(stream_name(app_id, name), info) for name in names}}
        )

    def channel(self, stream: str, info: frozenset[str]) -> bytes:
        """One channel."""
        occupied = self._hub.subscription_count(stream) > 0
        return _encode({"occupied": occupied, **self.counts(stream, info)})

    def users(self, stream: str) -> bytes:
        """The members of a presence channel."""
        return _encode({"users": [{"id": user_id} for user_id in self._hub.member_ids(stream)]})
