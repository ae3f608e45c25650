"""Who is there, without fronts and nodes: joins, limits, what was missed, what a loss takes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.channels.decide import registry as module
from tidelog.channels.decide.registry import (
    Departure,
    Difference,
    Part,
    Presence,
    Registry,
    in_parts,
)

ROOM = "channels/tide/presence-a"
LAB = "channels/tide/presence-b"


MAX_MEMBERS = 3


def heard(*names: str) -> Registry[str]:
    """Nodes that have each told one thing."""
    elsewhere: Registry[str] = Registry(MAX_MEMBERS)
    for name in names:
        assert elsewhere.hear(name, 1, 0.0)
    return elsewhere


def ana(stream: str = ROOM, info: bytes | None = b"1") -> Presence:
    """Ana on a channel."""
    return Presence(stream, "ana", info)


def test_a_user_is_there_from_its_first_node_to_its_last() -> None:
    """Joining a second node and leaving the first change nothing for others."""
    elsewhere = heard("n1", "n2")
    assert elsewhere.joined("n1", ana())
    assert not elsewhere.joined("n2", ana())
    assert elsewhere.has(ROOM, "ana")
    assert not elsewhere.has(LAB, "ana")
    assert elsewhere.members(ROOM) == {"ana": b"1"}
    assert not elsewhere.left("n1", ROOM, "ana")
    assert not elsewhere.left("n1", ROOM, "ana"), "twice"
    assert elsewhere.left("n2", ROOM, "ana")
    assert not elsewhere.members(ROOM)
    assert not elsewhere.left("n2", LAB, "nobody")


def test_an_update_counts_wherever_the_user_is() -> None:
    """And makes nobody present."""
    elsewhere = heard("n1", "n2")
    elsewhere.joined("n1", ana())
    elsewhere.joined("n2", ana())
    assert elsewhere.updated(ana(info=b"2"))
    assert not elsewhere.updated(Presence(ROOM, "bo", b"3"))
    assert elsewhere.members(ROOM) == {"ana": b"2"}
    elsewhere.left("n1", ROOM, "ana")
    assert elsewhere.members(ROOM) == {"ana": b"2"}


def test_counts_are_summed_and_a_channel_without_any_is_gone() -> None:
    """The last count of each node holds."""
    elsewhere = heard("n1", "n2")
    elsewhere.counted("n1", [(ROOM, 3), (LAB, 1)])
    elsewhere.counted("n2", [(ROOM, 2)])
    elsewhere.counted("n1", [(ROOM, 4), (LAB, 0)])
    assert (elsewhere.count(ROOM), elsewhere.count(LAB)) == (6, 0)
    assert elsewhere.streams("channels/tide/presence-") == [ROOM]
    assert not elsewhere.streams("channels/other/")


def test_a_gap_in_the_numbers_is_noticed_until_everything_was_told() -> None:
    """Also by whoever starts late; a node that has just begun has nothing to tell yet."""
    elsewhere = heard("n1")
    assert elsewhere.is_whole("n1")
    assert elsewhere.hear("n1", 2, 0.0)
    assert not elsewhere.hear("n1", 4, 0.0)
    assert not elsewhere.is_whole("n1")
    assert elsewhere.hear("n1", 5, 0.0), "said once"
    assert elsewhere.take("n1", Part(is_first=True, is_last=True)) == Difference([], [])
    assert elsewhere.is_whole("n1")
    assert not elsewhere.hear("old", 70, 0.0)
    assert not elsewhere.is_whole("old")


def test_all_facts_replace_the_known_ones_and_tell_the_difference() -> None:
    """Who was there and is there is not told of; nor is who is on a third node."""
    elsewhere = heard("n1", "n2")
    elsewhere.counted("n1", [(ROOM, 9), (LAB, 9)])
    for user in (ana(), Presence(ROOM, "bo", None), Presence(LAB, "cy", None)):
        elsewhere.joined("n1", user)
    elsewhere.joined("n2", Presence(LAB, "cy", None))
    elsewhere.joined("n2", Presence(LAB, "di", None))
    now = [ana(info=b"2"), Presence(LAB, "di", None), Presence(LAB, "ed", b"5")]
    first, last = in_parts([(ROOM, 1)], now)
    assert elsewhere.take("n1", first) is None
    assert elsewhere.take("n1", last) == Difference([now[2]], [Presence(ROOM, "bo", None)])
    assert (elsewhere.count(ROOM), elsewhere.count(LAB)) == (1, 0)
    assert elsewhere.members(ROOM) == {"ana": b"2"}
    assert set(elsewhere.members(LAB)) == {"cy", "di", "ed"}


def test_facts_come_in_parts_of_bounded_size() -> None:
    """They count when the last one is there, and not if one of them was missed."""
    users = [Presence(ROOM, f"u{n}", None) for n in range(2 * module.FACTS_PER_PART + 1)]
    parts = in_parts([(ROOM, 1)], users)
    sizes = [(len(p.counts), len(p.members)) for p in parts]
    most = module.FACTS_PER_PART
    assert sizes == [(1, 0), (0, most), (0, most), (0, 1)]
    assert [p.is_first for p in parts] == [True, False, False, False]
    assert [p.is_last for p in parts] == [False, False, False, True]
    elsewhere = heard("n1", "n2")
    assert [elsewhere.take("n1", part) for part in parts[:3]] == [None] * 3
    assert not elsewhere.members(ROOM)
    assert elsewhere.take("n1", parts[3]) == Difference(users, [])
    elsewhere.take("n2", parts[0])
    elsewhere.hear("n2", 4, 0.0)
    assert [elsewhere.take("n2", part) for part in parts[2:]] == [None, None]
    assert not elsewhere.is_whole("n2")
    assert in_parts([], []) == [Part(is_first=True, is_last=True)]


def test_a_silent_node_is_forgotten_with_all_that_only_it_had() -> None:
    """Unless this node could not hear."""
    elsewhere = heard("n1", "n2")
    elsewhere.joined("n1", ana())
    elsewhere.joined("n1", Presence(ROOM, "bo", None))
    elsewhere.joined("n2", ana())
    elsewhere.counted("n1", [(ROOM, 2)])
    elsewhere.hear("n2", 2, 10.0)
    assert elsewhere.silent_since(5.0) == ["n1"]
    elsewhere.excuse(12.0)
    assert not elsewhere.silent_since(5.0)
    assert elsewhere.forget("n1") == [Presence(ROOM, "bo", None)]
    assert elsewhere.nodes == {"n2"}
    assert elsewhere.count(ROOM) == 0
    assert elsewhere.members(ROOM) == {"ana": b"1"}


# Fronts.


def with_fronts(*names: str) -> Registry[str]:
    """Fronts that have nobody yet."""
    registry: Registry[str] = Registry(MAX_MEMBERS)
    for name in names:
        registry.enter(name)
    return registry


def test_a_limit_holds_over_all_fronts_and_nodes() -> None:
    """Whoever is there may come again, and does not count twice."""
    registry = with_fronts("f1", "f2")
    registry.hear("n1", 1, 0.0)
    registry.joined("n1", ana())
    for user, front in (("bo", "f1"), ("cy", "f2")):
        assert registry.join(front, Presence(ROOM, user, None)) is not None
    assert registry.join("f1", Presence(ROOM, "di", None)) is None
    assert registry.join("f2", Presence(LAB, "di", None)) is not None
    again = registry.join("f2", ana(info=b"other"))
    assert again is not None
    assert again.members == {"ana": b"1", "bo": None, "cy": None}, "her info is what others know"
    assert (again.is_first, again.is_first_here) == (False, True)
    assert registry.count(ROOM) == 3
    registry.leave("f2", ROOM, "cy")
    assert registry.join("f1", Presence(ROOM, "di", None)) is not None


def test_a_user_is_there_from_its_first_socket_to_its_last() -> None:
    """However its sockets are spread over fronts; each that joined must leave."""
    registry = with_fronts("f1", "f2")
    seen = [registry.join(front, ana()) for front in ("f1", "f1", "f2")]
    assert [each.is_first for each in seen if each] == [True, False, False]
    assert [each.is_first_here for each in seen if each] == [True, False, False]
    assert registry.fronts_with_members(ROOM) == ["f1", "f2"]
    assert registry.count(ROOM) == 3
    assert registry.leave("f1", ROOM, "ana") == Departure(False, False)
    assert registry.leave("f2", ROOM, "ana") == Departure(False, False)
    assert registry.fronts_with_members(ROOM) == ["f1"]
    assert registry.leave("f1", ROOM, "ana") == Departure(True, True)
    assert (registry.count(ROOM), registry.streams("")) == (0, [])


def test_a_lost_front_takes_with_it_what_only_it_had() -> None:
    """Members that are elsewhere stay, and so do the counts of others."""
    registry = with_fronts("f1", "f2")
    for front in ("f1", "f2"):
        registry.join(front, ana())
        registry.count_front(front, "channels/tide/room", 2)
    registry.join("f1", Presence(LAB, "bo", b"3"))
    assert registry.counts_here() == [(ROOM, 2), ("channels/tide/room", 4), (LAB, 1)]
    assert sorted(registry.members_here()) == [ana(), Presence(LAB, "bo", b"3")]
    assert registry.drop("f1") == [Presence(LAB, "bo", b"3")]
    assert registry.drop("f1") == [], "once"
    assert (registry.count(LAB), registry.count("channels/tide/room")) == (0, 2)
    assert registry.drop("f2") == [ana()]
    assert not registry.streams("")


FRONTS, USERS, STREAMS = ("f1", "f2", "f3"), ("a", "b", "c", "d", "e"), (ROOM, LAB)


class Sockets(RuleBasedStateMachine):
    """The registry is always what the sockets of all fronts add up to, and never over its limit."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = with_fronts(*FRONTS)
        self.sockets: list[tuple[str, str, str]] = []
        """Front, stream and user of each."""

    def _users(self, stream: str) -> set[str]:
        return {user for _, there, user in self.sockets if there == stream}

    @rule(
        front=st.sampled_from(FRONTS), stream=st.sampled_from(STREAMS), user=st.sampled_from(USERS)
    )
    def join(self, front: str, stream: str, user: str) -> None:
        """A socket comes."""
        before = self._users(stream)
        arrival = self.registry.join(front, Presence(stream, user, None))
        if arrival is None:
            assert user not in before
            assert len(before) == MAX_MEMBERS
        else:
            assert arrival.is_first == (user not in before)
            self.sockets.append((front, stream, user))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One goes."""
        if self.sockets:
            front, stream, user = data.draw(st.sampled_from(self.sockets))
            self.sockets.remove((front, stream, user))
            departure = self.registry.leave(front, stream, user)
            assert departure.is_last == (user not in self._users(stream))

    @rule(front=st.sampled_from(FRONTS))
    def lose(self, front: str) -> None:
        """All of a front go, and it begins anew."""
        lost = {each[1:] for each in self.sockets if each[0] == front}
        self.sockets = [each for each in self.sockets if each[0] != front]
        gone = {user[:2] for user in self.registry.drop(front)}
        assert gone == lost - {each[1:] for each in self.sockets}
        self.registry.enter(front)

    @invariant()
    def adds_up(self) -> None:
        """Members, counts and interest."""
        for stream in STREAMS:
            there = [each for each in self.sockets if each[1] == stream]
            assert set(self.registry.members(stream)) == {each[2] for each in there}
            assert self.registry.count(stream) == len(there)
            assert set(self.registry.fronts_with_members(stream)) == {each[0] for each in there}
            assert len(self._users(stream)) <= MAX_MEMBERS


TestSockets = Sockets.TestCase
TestSockets.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
