"""What other nodes tell, without nodes: who is where, what was missed, what silence takes."""

from tidelog.channels.front.cluster import other_nodes as module
from tidelog.channels.front.cluster.other_nodes import (
    Difference,
    OtherNodes,
    Part,
    Presence,
    in_parts,
)

ROOM = "channels/tide/presence-a"
LAB = "channels/tide/presence-b"


def heard(*names: str) -> OtherNodes:
    """Nodes that have each told one thing."""
    elsewhere = OtherNodes()
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
    elsewhere.updated(ana(info=b"2"))
    elsewhere.updated(Presence(ROOM, "bo", b"3"))
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
    assert set(elsewhere.streams("channels/tide/presence-")) == {ROOM}
    assert not list(elsewhere.streams("channels/other/"))


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
