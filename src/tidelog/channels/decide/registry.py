"""Who is there: members of presence channels and subscriptions, by the place that has them.

A place is a front of this node or another node. The owner is the authority for its fronts: what a
front joins is decided here, one join after the other, so that a limit holds over all of them. Of
other nodes it knows what they have told, which is some milliseconds old: whoever decides by it (the
first and the last socket of a member, the member limit) may for that long decide as if the news
were not out yet; afterwards all nodes agree.

Pure: messages and the time go in, and what they changed comes out. Every node numbers what it
tells; a number that does not follow the one before means that something was not heard, and then
all of that node's facts are wanted again (`Part`), which replace the known ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

FACTS_PER_PART = 1000
"""Facts told in one message."""

Infos = dict[str, bytes | None]
"""The `user_info` of users."""

F = TypeVar("F")


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
    """Users that are now there and were nowhere, and the reverse."""

    came: Sequence[Presence]
    went: Sequence[Presence]


class Arrival(NamedTuple):
    """A user's socket was let in."""

    members: Infos
    """All users of the channel, with this one."""
    is_first: bool
    """Whether the user was nowhere."""
    is_first_here: bool
    """Whether the user was on no front of this node."""


class Departure(NamedTuple):
    """A user's socket has left."""

    is_last: bool
    """Whether the user is nowhere now."""
    is_last_here: bool
    """Whether the user is on no front of this node now."""


class _Place:
    """What one place has."""

    __slots__ = ("counts", "members")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Subscriptions by stream; never 0."""
        self.members: dict[str, Infos] = {}
        """By stream, in the order in which they came; never empty."""

    def set_count(self, stream: str, count: int) -> None:
        if count:
            self.counts[stream] = count
        else:
            self.counts.pop(stream, None)

    def add(self, user: Presence) -> None:
        self.members.setdefault(user.stream, {})[user.user_id] = user.user_info

    def remove(self, stream: str, user_id: str) -> None:
        members = self.members[stream]
        del members[user_id]
        if not members:
            del self.members[stream]

    def users(self) -> Iterator[Presence]:
        for stream, members in self.members.items():
            for user_id, user_info in members.items():
                yield Presence(stream, user_id, user_info)


class _Front(_Place):
    """One front of this node."""

    __slots__ = ("sockets",)

    def __init__(self) -> None:
        super().__init__()
        self.sockets: dict[tuple[str, str], int] = {}
        """How many of a channel's user it has; never 0."""

    def entered(self, user: Presence) -> None:
        """A socket of a user has joined."""
        key = user.stream, user.user_id
        self.sockets[key] = self.sockets.get(key, 0) + 1
        self.set_count(user.stream, self.counts.get(user.stream, 0) + 1)
        self.add(user)


class _Node(_Place):
    """One other node."""

    __slots__ = ("heard_at", "incoming", "is_whole", "number")

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        """Of the last message that was heard."""
        self.heard_at = 0.0
        self.is_whole = True
        """Whether nothing was missed since it began, or since it told everything."""
        self.incoming: list[Part] | None = None


class Registry(Generic[F]):
    """All fronts of this node, whatever they are to whoever uses this, and the other nodes."""

    def __init__(self, max_members: int) -> None:
        """A channel has at most so many members."""
        self._max_members = max_members
        self._fronts: dict[F, _Front] = {}
        self._nodes: dict[str, _Node] = {}

    # Questions.

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the other nodes."""
        return frozenset(self._nodes)

    def _places(self) -> Iterable[_Place]:
        return chain(self._nodes.values(), self._fronts.values())

    def count(self, stream: str) -> int:
        """Subscriptions to a channel."""
        return sum(place.counts.get(stream, 0) for place in self._places())

    def streams(self, prefix: str) -> list[str]:
        """Channels with subscriptions, in order."""
        streams = chain.from_iterable(place.counts for place in self._places())
        return sorted({stream for stream in streams if stream.startswith(prefix)})

    def members(self, stream: str) -> Infos:
        """The users on a channel and their `user_info`."""
        found: Infos = {}
        for place in self._places():
            if stream in place.members:
                found |= place.members[stream]
        return found

    def has(self, stream: str, user_id: str) -> bool:
        """Whether a user is on a channel."""
        return any(user_id in place.members.get(stream, ()) for place in self._places())

    def fronts_with_members(self, stream: str) -> list[F]:
        """The fronts that have members on a channel."""
        return [front for front, place in self._fronts.items() if stream in place.members]

    # What this node tells others of itself.

    def count_here(self, stream: str) -> int:
        """Subscriptions to a channel on the fronts of this node."""
        return sum(place.counts.get(stream, 0) for place in self._fronts.values())

    def counts_here(self) -> list[tuple[str, int]]:
        """Every channel and its subscriptions on the fronts of this node."""
        counts: dict[str, int] = {}
        for place in self._fronts.values():
            for stream, count in place.counts.items():
                counts[stream] = counts.get(stream, 0) + count
        return [*counts.items()]

    def members_here(self) -> Iterator[Presence]:
        """Every user on every channel of the fronts of this node."""
        users = chain.from_iterable(place.users() for place in self._fronts.values())
        return iter({user[:2]: user for user in users}.values())

    def _is_here(self, stream: str, user_id: str) -> bool:
        return any((stream, user_id) in place.sockets for place in self._fronts.values())

    # Fronts.

    def enter(self, front: F) -> None:
        """A front has come, with nobody yet."""
        self._fronts[front] = _Front()

    def join(self, front: F, user: Presence) -> Arrival | None:
        """One more socket of a user joins a channel; None if the channel is full.

        A user who is there already keeps the `user_info` that the others know.
        """
        stream, user_id, _ = user
        members = self.members(stream)
        is_first = user_id not in members
        if is_first and len(members) >= self._max_members:
            return None
        is_first_here = is_first or not self._is_here(stream, user_id)
        user = user if is_first else Presence(stream, user_id, members[user_id])
        self._fronts[front].entered(user)
        members[user_id] = user.user_info
        return Arrival(members, is_first, is_first_here)

    def leave(self, front: F, stream: str, user_id: str) -> Departure:
        """One of the sockets of a user has left a channel."""
        place, key = self._fronts[front], (stream, user_id)
        sockets = place.sockets[key] - 1
        place.set_count(stream, place.counts[stream] - 1)
        if sockets:
            place.sockets[key] = sockets
            return Departure(is_last=False, is_last_here=False)
        del place.sockets[key]
        place.remove(stream, user_id)
        return Departure(not self.has(stream, user_id), not self._is_here(stream, user_id))

    def count_front(self, front: F, stream: str, count: int) -> None:
        """So many are subscribed there to a channel that has no members."""
        self._fronts[front].set_count(stream, count)

    def drop(self, front: F) -> list[Presence]:
        """A front is gone; returns the users that are nowhere now."""
        place = self._fronts.pop(front, None)
        if place is None:
            return []
        return [user for user in place.users() if not self.has(user.stream, user.user_id)]

    # Other nodes.

    def hear(self, name: str, number: int, now: float) -> bool:
        """A message of a node came; False if one before it did not."""
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
        node = self._nodes[name]
        for stream, count in counts:
            node.set_count(stream, count)

    def joined(self, name: str, user: Presence) -> bool:
        """A user joined a channel there; returns whether it was nowhere."""
        is_first = not self.has(user.stream, user.user_id)
        self._nodes[name].add(user)
        return is_first

    def left(self, name: str, stream: str, user_id: str) -> bool:
        """A user left a channel there; returns whether it is nowhere now, but was."""
        node = self._nodes[name]
        if user_id not in node.members.get(stream, ()):
            return False
        node.remove(stream, user_id)
        return not self.has(stream, user_id)

    def updated(self, user: Presence) -> bool:
        """A user's info changed, wherever the user is; returns whether it is anywhere."""
        is_there = False
        for place in self._places():
            members = place.members.get(user.stream)
            if members is not None and user.user_id in members:
                members[user.user_id] = user.user_info
                is_there = True
        return is_there

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
        before = [*node.users()]
        known = {user[:2] for user in before}
        node.members = {}
        now = [*chain.from_iterable(each.members for each in parts)]
        came = [user for user in now if user[:2] not in known and not self.has(*user[:2])]
        for user in now:
            node.add(user)
        return Difference(came, [user for user in before if not self.has(*user[:2])])

    # Silence.

    def silent_since(self, moment: float) -> list[str]:
        """The nodes of which nothing was heard since."""
        return [name for name, node in self._nodes.items() if node.heard_at < moment]

    def excuse(self, now: float) -> None:
        """This node heard nothing until now: silence says nothing about the others."""
        for node in self._nodes.values():
            node.heard_at = now

    def forget(self, name: str) -> list[Presence]:
        """A node is gone; returns the users that are nowhere now."""
        gone = self._nodes.pop(name)
        return [user for user in gone.users() if not self.has(user.stream, user.user_id)]
