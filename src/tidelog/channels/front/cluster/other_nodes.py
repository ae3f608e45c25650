"""What the other nodes have told of themselves: who is present there, and how many listen.

Pure: messages and the time go in, and what they changed comes out. Every node numbers what it
tells; a number that does not follow the one before means that something was not heard, and then
all of that node's facts are wanted again (`Part`), which replace the known ones.

Facts of other nodes are some milliseconds old. Whoever decides by them (the first and the last
socket of a member, the member limit) may for that long decide as if the news were not out yet;
afterwards all nodes agree.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

FACTS_PER_PART = 1000
"""Facts told in one message."""

NOTHING: Mapping[str, bytes | None] = {}


class Presence(NamedTuple):
    """A user on a presence channel."""

    stream: str
    user_id: str
    user_info: bytes | None


class Part(Struct, tag=True, frozen=True):
    """A part of all that a node has to tell of itself; its parts follow each other."""

    is_first: bool = False
    is_last: bool = False
    counts: tuple[tuple[str, int], ...] = ()
    """Stream and its subscriptions on that node."""
    members: tuple[Presence, ...] = ()


def in_parts(counts: Iterable[tuple[str, int]], members: Iterable[Presence]) -> list[Part]:
    """All facts of a node as messages; at least one."""
    pieces: list[dict[str, tuple[object, ...]]] = []
    for name, facts in (("counts", tuple(counts)), ("members", tuple(members))):
        pieces += [
            {name: facts[start : start + FACTS_PER_PART]}
            for start in range(0, len(facts), FACTS_PER_PART)
        ]
    pieces = pieces or [{}]
    last = len(pieces) - 1
    return [
        Part(is_first=number == 0, is_last=number == last, **piece)  # type: ignore[arg-type]
        for number, piece in enumerate(pieces)
    ]


class Difference(NamedTuple):
    """Users that are now on some other node and were on none, and the reverse."""

    came: list[Presence]
    went: list[Presence]


class _Node:
    """One other node."""

    __slots__ = ("counts", "heard_at", "incoming", "is_whole", "members", "number")

    def __init__(self) -> None:
        self.number = 0
        """Of the last message that was heard."""
        self.heard_at = 0.0
        self.is_whole = True
        """Whether nothing was missed since it began, or since it told everything."""
        self.incoming: list[Part] | None = None
        self.counts: dict[str, int] = {}
        """By stream; never 0."""
        self.members: dict[str, dict[str, bytes | None]] = {}
        """By stream, then user; never empty."""


class OtherNodes:
    """All other nodes that are alive."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    @property
    def nodes(self) -> frozenset[str]:
        """Their names."""
        return frozenset(self._nodes)

    # Questions.

    def count(self, stream: str) -> int:
        """Subscriptions to a channel."""
        return sum(node.counts.get(stream, 0) for node in self._nodes.values())

    def streams(self, prefix: str) -> Iterator[str]:
        """Channels with subscriptions; one may come several times."""
        streams = chain.from_iterable(node.counts for node in self._nodes.values())
        return (stream for stream in streams if stream.startswith(prefix))

    def members(self, stream: str) -> Mapping[str, bytes | None]:
        """The users on a channel and their `user_info`."""
        found = [node.members[stream] for node in self._nodes.values() if stream in node.members]
        if not found:
            return NOTHING
        return found[0] if len(found) == 1 else dict(ChainMap(*found))

    def has(self, stream: str, user_id: str) -> bool:
        """Whether a user is on a channel."""
        return any(user_id in node.members.get(stream, ()) for node in self._nodes.values())

    # What is heard.

    def hear(self, name: str, number: int, now: float) -> bool:
        """A message came; False if one before it did not."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node()
        follows = number == node.number + 1
        node.number, node.heard_at = number, now
        if not follows:
            node.is_whole, node.incoming = False, None
        return follows

    def is_whole(self, name: str) -> bool:
        """Whether all facts of a node are known."""
        return self._nodes[name].is_whole

    def counted(self, name: str, counts: Iterable[tuple[str, int]]) -> None:
        """How many subscriptions a node has to these channels."""
        known = self._nodes[name].counts
        for stream, count in counts:
            if count:
                known[stream] = count
            else:
                known.pop(stream, None)

    def joined(self, name: str, user: Presence) -> bool:
        """A user joined a channel there; returns whether it was on no other node."""
        is_first = not self.has(user.stream, user.user_id)
        members = self._nodes[name].members.setdefault(user.stream, {})
        members[user.user_id] = user.user_info
        return is_first

    def left(self, name: str, stream: str, user_id: str) -> bool:
        """A user left a channel there; returns whether it is on no other node now."""
        members = self._nodes[name].members.get(stream)
        if members is None or user_id not in members:
            return False
        del members[user_id]
        if not members:
            del self._nodes[name].members[stream]
        return not self.has(stream, user_id)

    def updated(self, user: Presence) -> None:
        """A user's info changed, wherever the user is."""
        for node in self._nodes.values():
            members = node.members.get(user.stream)
            if members is not None and user.user_id in members:
                members[user.user_id] = user.user_info

    def take(self, name: str, part: Part) -> Difference | None:
        """A part of all facts of a node; the last one replaces what was known."""
        node = self._nodes[name]
        if part.is_first:
            node.incoming = []
        if node.incoming is None:
            return None  # its beginning was missed
        node.incoming.append(part)
        if not part.is_last:
            return None
        parts, node.incoming = node.incoming, None
        node.is_whole = True
        node.counts = {stream: count for each in parts for stream, count in each.counts}
        members: dict[str, dict[str, bytes | None]] = {}
        for user in chain.from_iterable(each.members for each in parts):
            members.setdefault(user.stream, {})[user.user_id] = user.user_info
        before, node.members = node.members, {}
        came = [user for user in _users(members) if not self._had(before, user)]
        node.members = members
        went = [user for user in _users(before) if not self.has(user.stream, user.user_id)]
        return Difference(came, went)

    def _had(self, before: Mapping[str, Mapping[str, bytes | None]], user: Presence) -> bool:
        known_here = user.user_id in before.get(user.stream, NOTHING)
        return known_here or self.has(user.stream, user.user_id)

    # Silence.

    def silent_since(self, moment: float) -> list[str]:
        """The nodes of which nothing was heard since."""
        return [name for name, node in self._nodes.items() if node.heard_at < moment]

    def excuse(self, now: float) -> None:
        """This node heard nothing until now: silence says nothing about the others."""
        for node in self._nodes.values():
            node.heard_at = now

    def forget(self, name: str) -> list[Presence]:
        """A node is gone; returns the users that are nowhere else."""
        gone = self._nodes.pop(name)
        return [user for user in _users(gone.members) if not self.has(user.stream, user.user_id)]


def _users(members: Mapping[str, Mapping[str, bytes | None]]) -> Iterator[Presence]:
    for stream, users in members.items():
        for user_id, user_info in users.items():
            yield Presence(stream, user_id, user_info)
