"""How many are there, over all fronts and nodes: what the HTTP API tells of channels."""

from collections.abc import Iterable

import msgspec

from tidelog.channels.messages import Count, Counts, ListMembers, Occupied, Present
from tidelog.channels.protocol.names import ChannelKind, kind_of, split_stream, stream_name
from tidelog.link.ends import FrontEnd

_encode = msgspec.json.Encoder().encode


class Occupancy:
    """Counts and names of who is there; returned as JSON."""

    def __init__(self, link: FrontEnd) -> None:
        self._link = link

    async def channels(self, app_id: str, prefix: str, info: frozenset[str]) -> bytes:
        """The occupied channels of an app."""
        question = Occupied(stream_name(app_id, prefix), "user_count" in info)
        found = (await self._link.reply(question, Counts)).counts
        said = {split_stream(each[0])[1]: _said(each, info) for each in found}
        return _encode({"channels": said})

    async def channel(self, stream: str, info: frozenset[str]) -> bytes:
        """One channel."""
        [found] = (await self._link.reply(Count((stream,)), Counts)).counts
        return _encode({"occupied": found[1] > 0, **_said(found, info)})

    async def users(self, stream: str) -> bytes:
        """The members of a presence channel."""
        present = await self._link.reply(ListMembers(stream), Present)
        return _encode({"users": [{"id": user_id} for user_id in present.members]})

    async def subscriptions(self, streams: Iterable[str]) -> dict[str, int]:
        """How many are subscribed to these."""
        found = await self._link.reply(Count(tuple(streams)), Counts)
        return {stream: subscriptions for stream, subscriptions, _ in found.counts}


def _said(found: tuple[str, int, int], info: frozenset[str]) -> dict[str, int]:
    """What `info` asks to know of a channel."""
    stream, subscriptions, users = found
    counts: dict[str, int] = {}
    if "subscription_count" in info:
        counts["subscription_count"] = subscriptions
    if "user_count" in info and kind_of(split_stream(stream)[1]) is ChannelKind.PRESENCE:
        counts["user_count"] = users
    return counts
