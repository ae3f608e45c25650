"""The state of a partition: preconditions, effects and invariants of sync 13.3 and 13.4.

The property tests compare it with a reducer that follows the text of the contract with plain nested
lists and deep copies, and knows nothing of links, undo lists or sizes.
"""

import time
from collections.abc import Iterator
from copy import deepcopy
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import MAX_SEGMENTS, TREE_ACTIONS, Model, tree_faults
from tidelog.sync.protocol.tree import TreeState

MODEL = Model.parse(
    {
        "t": {"kind": "tree", "actions": list(TREE_ACTIONS)},
        "u": {"kind": "tree", "actions": list(TREE_ACTIONS)},
        "v": {"kind": "value", "actions": ["set", "unset"]},
        "v.n": {"kind": "value", "actions": ["set", "unset"]},
    },
    {},
    1,
)
EMPTY: dict[str, Any] = {"items": {}, "tree": []}


def act(action: str, target: str = "t", **payload: Any) -> dict[str, Any]:
    """An event of the tree profile."""
    return {"type": action, "payload": {"target": target, **payload}}


def push(name: str, **options: Any) -> dict[str, Any]:
    """A `treePush` of an item that has nothing but its id."""
    return act("treePush", value={"id": name}, options=options)


def move(name: str, **options: Any) -> dict[str, Any]:
    """A `treeMove`."""
    return act("treeMove", options={"id": name, **options})


def state_of(*events: dict[str, Any]) -> TreeState:
    """The state after events that are all fine."""
    state = TreeState(MODEL)
    for event in events:
        assert tree_faults(MODEL, event) == []
        assert state.check(event) == []
        state.apply(event)
    return state


def faults(state: TreeState, event: dict[str, Any]) -> list[tuple[str, str]]:
    """The faults of an event that is fine by itself, fields below `event.payload`."""
    assert tree_faults(MODEL, event) == []
    before = state.export()
    found = state.check(event)
    assert state.export() == before
    assert found == sorted(found)
    return [(fault.field.removeprefix("event.payload."), fault.message) for fault in found]


def outline(nodes: list[Any]) -> str:
    """A tree as text: `a(b c) d`."""
    return " ".join(
        node["id"] + (f"({outline(node['children'])})" if node["children"] else "")
        for node in nodes
    )


def shape(state: TreeState, target: str = "t") -> str:
    """The outline of a tree target."""
    return outline(state.export()[target]["tree"])


def forest() -> TreeState:
    """A tree with two levels below the first node: `a(b(c)) d`."""
    return state_of(
        push("d"), push("a"), push("b", parent="a"), push("c", parent="b", position="last")
    )


# 13.1.


def test_new_state() -> None:
    """Tree targets are empty at first, value targets are absent."""
    assert TreeState(MODEL).export() == {"t": EMPTY, "u": EMPTY}


def test_state_is_nested() -> None:
    """The exported state has the form of the contract, items with their own id (sync D49)."""
    state = state_of(
        act("treePush", value={"id": "a", "name": "A"}),
        act("treePush", value={"id": "b"}, options={"parent": "a"}),
    )
    assert state.export()["t"] == {
        "items": {"a": {"id": "a", "name": "A"}, "b": {"id": "b"}},
        "tree": [{"id": "a", "children": [{"id": "b", "children": []}]}],
    }


def test_targets_are_independent() -> None:
    """The same id may be in two targets."""
    state = state_of(push("a"), act("treePush", "u", value={"id": "a"}))
    state.apply(act("treeDelete", options={"id": "a"}))
    assert (shape(state), shape(state, "u")) == ("", "a")


# 13.3, treePush.


def test_push_duplicate() -> None:
    """An id is in a tree once."""
    assert faults(forest(), push("c")) == [("value.id", "duplicate id")]


def test_push_root() -> None:
    """The name of the top is no id."""
    assert faults(forest(), push("_root")) == [("value.id", "is reserved")]


def test_push_unknown_parent() -> None:
    """A parent exists; of siblings below a missing one nothing is said."""
    assert faults(forest(), push("e", parent="x", position={"after": "x"})) == [
        ("options.parent", "unknown id")
    ]


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize(("parent", "sibling"), [("_root", "x"), ("_root", "b"), ("a", "a")])
def test_push_beside_a_stranger(side: str, parent: str, sibling: str) -> None:
    """A sibling is a child of the parent, unknown ids and other nodes are not."""
    assert faults(forest(), push("e", parent=parent, position={side: sibling})) == [
        (f"options.position.{side}", "is not another child of that parent")
    ]


def test_push_reports_all() -> None:
    """Independent faults are reported together."""
    wrong = faults(forest(), push("a", position={"after": "x"}))
    assert [field for field, _ in wrong] == ["options.position.after", "value.id"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "e a(b(c)) d"),
        ({"position": "first"}, "e a(b(c)) d"),
        ({"position": "last"}, "a(b(c)) d e"),
        ({"position": {"after": "a"}}, "a(b(c)) e d"),
        ({"position": {"after": "d"}}, "a(b(c)) d e"),
        ({"position": {"before": "a"}}, "e a(b(c)) d"),
        ({"position": {"before": "d"}}, "a(b(c)) e d"),
        ({"parent": "_root", "position": "last"}, "a(b(c)) d e"),
        ({"parent": "a"}, "a(e b(c)) d"),
        ({"parent": "a", "position": {"after": "b"}}, "a(b(c) e) d"),
        ({"parent": "d"}, "a(b(c)) d(e)"),
    ],
)
def test_push_positions(options: dict[str, Any], expected: str) -> None:
    """Each position puts the new node where it says."""
    state = forest()
    state.apply(push("e", **options))
    assert shape(state) == expected


# 13.3, treeDelete.


def test_delete_unknown() -> None:
    """Only a node can be deleted, and the top is none."""
    for name in ("x", "_root"):
        event = act("treeDelete", options={"id": name})
        assert faults(forest(), event) == [("options.id", "unknown id")]


def test_delete_takes_descendants() -> None:
    """A deleted node takes everything below it and all their items along."""
    state = forest()
    state.apply(act("treeDelete", options={"id": "a"}))
    assert state.export()["t"] == {
        "items": {"d": {"id": "d"}},
        "tree": [{"id": "d", "children": []}],
    }


def test_deleted_ids_are_free() -> None:
    """The id of a deleted descendant can be used again."""
    state = forest()
    state.apply(act("treeDelete", options={"id": "a"}))
    assert faults(state, push("c")) == []


# 13.3, treeUpdate.


def test_update_unknown() -> None:
    """Only an existing item can be updated."""
    event = act("treeUpdate", value={}, options={"id": "x"})
    assert faults(forest(), event) == [("options.id", "unknown id")]


@pytest.mark.parametrize("other", ["b", "", None, 5])
def test_update_renames_nothing(other: Any) -> None:
    """`value.id` may be absent or the same."""
    event = act("treeUpdate", value={"id": other}, options={"id": "a"})
    assert faults(forest(), event) == [("value.id", "differs from options.id")]
    assert faults(forest(), act("treeUpdate", value={"id": "a"}, options={"id": "a"})) == []


def test_update_merges_one_level() -> None:
    """Members are replaced as a whole, the others stay; null is a value like others."""
    state = state_of(
        act("treePush", value={"id": "a", "name": "A", "tags": {"x": 1}, "keep": [1]}),
        act("treeUpdate", value={"name": None, "tags": {"y": 2}}, options={"id": "a"}),
    )
    assert state.export()["t"]["items"] == {
        "a": {"id": "a", "name": None, "tags": {"y": 2}, "keep": [1]}
    }


def test_update_replaces() -> None:
    """With `replace` only the id stays."""
    state = state_of(
        act("treePush", value={"id": "a", "name": "A"}),
        act("treeUpdate", value={"only": "this"}, options={"id": "a", "replace": True}),
    )
    assert state.export()["t"]["items"] == {"a": {"id": "a", "only": "this"}}


# 13.3, treeMove.


def test_move_unknown() -> None:
    """Only a node can be moved, and the top is none."""
    for name in ("x", "_root"):
        assert faults(forest(), move(name)) == [("options.id", "unknown id")]


@pytest.mark.parametrize("parent", ["x", "a", "b", "c"])
def test_move_to_a_wrong_parent(parent: str) -> None:
    """A parent exists and is neither the node nor below it."""
    [(field, _)] = faults(forest(), move("a", parent=parent))
    assert field == "options.parent"


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize(("parent", "sibling"), [("_root", "a"), ("d", "b"), ("_root", "x")])
def test_move_beside_a_stranger(side: str, parent: str, sibling: str) -> None:
    """A sibling is a child of the parent and not the node itself."""
    assert faults(forest(), move("a", parent=parent, position={side: sibling})) == [
        (f"options.position.{side}", "is not another child of that parent")
    ]


def test_move_reports_all() -> None:
    """Independent faults are reported together."""
    wrong = faults(forest(), move("x", parent="y"))
    assert [field for field, _ in wrong] == ["options.id", "options.parent"]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("a", {}, "a(b(c)) d"),
        ("a", {"position": "last"}, "d a(b(c))"),
        ("d", {}, "d a(b(c))"),
        ("a", {"position": {"after": "d"}}, "d a(b(c))"),
        ("a", {"position": {"before": "d"}}, "a(b(c)) d"),
        ("d", {"position": {"after": "a"}}, "a(b(c)) d"),
        ("a", {"parent": "d"}, "d(a(b(c)))"),
        ("d", {"parent": "b", "position": {"after": "c"}}, "a(b(c d))"),
        ("c", {"position": {"before": "d"}}, "a(b) c d"),
        ("b", {"parent": "a", "position": "last"}, "a(b(c)) d"),
    ],
)
def test_move_positions(name: str, options: dict[str, Any], expected: str) -> None:
    """The node is taken out with its subtree first; then the position is looked for."""
    state = forest()
    items = state.export()["t"]["items"]
    assert faults(state, move(name, **options)) == []
    state.apply(move(name, **options))
    assert shape(state) == expected
    assert state.export()["t"]["items"] == items


# 13.3, set and unset of values.


def value_after(*steps: tuple[str, Any]) -> Any:
    """What `v` holds after steps of path and value; `...` unsets."""
    events = (
        act("unset", path) if value is ... else act("set", path, value=value)
        for path, value in steps
    )
    return state_of(*events).export().get("v", ...)


def test_set_array_needs_replace() -> None:
    """An array is only ever put in place as a whole, which has to be said."""
    state = TreeState(MODEL)
    wrong = [("value", "an array needs options.replace")]
    assert faults(state, act("set", "v.a", value=[1])) == wrong
    assert faults(state, act("set", "v.a", value=[], options={"replace": False})) == wrong
    assert faults(state, act("set", "t", value=[])) == wrong
    assert faults(state, act("set", "v.a", value=[1], options={"replace": True})) == []
    assert faults(state, act("set", "v.a", value={"b": [1]})) == []


@pytest.mark.parametrize("blocker", [5, "text", False, [1]])
def test_path_crosses_a_value(blocker: Any) -> None:
    """A path leads through objects only, for `set` and for `unset`."""
    state = state_of(act("set", "v.a", value=blocker, options={"replace": True}))
    wrong = [("target", "crosses a value that is not an object")]
    assert faults(state, act("set", "v.a.b", value=1)) == wrong
    assert faults(state, act("set", "v.a.b.c", value=1)) == wrong
    assert faults(state, act("unset", "v.a.b")) == wrong
    assert faults(state, act("set", "v.a", value=1)) == []


def test_set_reports_all() -> None:
    """Independent faults are reported together."""
    state = state_of(act("set", "v", value=5))
    assert [field for field, _ in faults(state, act("set", "v.a", value=[]))] == ["target", "value"]


def test_set_creates_intermediates() -> None:
    """Missing and null intermediates become objects (sync D52)."""
    assert value_after(("v.a.b.c", 1)) == {"a": {"b": {"c": 1}}}
    assert value_after(("v", None), ("v.a", 1)) == {"a": 1}
    assert value_after(("v.a", None), ("v.a.b", 1)) == {"a": {"b": 1}}


def test_set_merges_one_level() -> None:
    """Objects are merged member by member, not deeper."""
    old = {"a": {"x": 1}, "b": 2}
    assert value_after(("v", old), ("v", {"a": {"y": 1}})) == {"a": {"y": 1}, "b": 2}
    assert value_after(("v.k", old), ("v.k", {"b": None})) == {"k": {"a": {"x": 1}, "b": None}}


def test_set_replaces_what_does_not_merge() -> None:
    """Unless both sides are objects the new value takes the place of the old (sync D52)."""
    assert value_after(("v.a", 1), ("v.a", {"b": 1})) == {"a": {"b": 1}}
    assert value_after(("v.a", {"b": 1}), ("v.a", 1)) == {"a": 1}
    assert value_after(("v.a", {"b": 1}), ("v.a", None)) == {"a": None}
    assert value_after(("v.a", None), ("v.a", {"b": 1})) == {"a": {"b": 1}}


def test_set_with_replace() -> None:
    """`replace` keeps nothing of an object."""
    state = state_of(
        act("set", "v", value={"a": 1}),
        act("set", "v", value={"b": 1}, options={"replace": True}),
    )
    assert state.export()["v"] == {"b": 1}


def test_unset() -> None:
    """A member is removed; a path that is absent, or null on the way, is fine and does nothing."""
    assert value_after(("v", {"a": 1, "b": 2}), ("v.a", ...)) == {"b": 2}
    assert value_after(("v.a", None), ("v.a", ...)) == {}
    assert value_after(("v.a", None), ("v.a.b.c", ...)) == {"a": None}
    assert value_after(("v.a", 1), ("v.b", ...), ("v.b.c", ...)) == {"a": 1}
    assert value_after(("v.a", ...)) is ...
    assert value_after(("v", {"a": 1}), ("v", ...)) is ...


def test_nested_registrations_hold_their_own_values() -> None:
    """What is set below the longer registered name is not part of the shorter one's value."""
    state = state_of(act("set", "v.n.x", value=1), act("set", "v.m", value=2))
    exported = state.export()
    assert (exported["v"], exported["v.n"]) == ({"m": 2}, {"x": 1})


def test_deepest_state_is_written_and_read() -> None:
    """The longest path with a deep value below it stays within what can be copied."""
    deep: Any = 1
    for _ in range(64):
        deep = {"a": deep}
    state = state_of(act("set", ".".join(["v"] * MAX_SEGMENTS), value=deep))
    assert TreeState.load(MODEL, state.export()).export() == state.export()


# Set and unset of whole trees (sync 13.3, 13.4).

NODE_X = {"id": "x", "children": []}
NODE_Y = {"id": "y", "children": []}
ITEMS = {"x": {"id": "x"}, "y": {"id": "y"}}
BROKEN: list[tuple[Any, list[str]]] = [
    (None, ["malformed tree"]),
    (5, ["malformed tree"]),
    ([], ["malformed tree"]),
    ({}, ["malformed tree"]),
    ({"items": {}}, ["malformed tree"]),
    ({"items": [], "tree": []}, ["malformed tree"]),
    ({"items": {}, "tree": {}}, ["malformed tree"]),
    ({"items": None, "tree": []}, ["malformed tree"]),
    ({"items": {}, "tree": [], "more": 1}, ["malformed tree"]),
    ({"items": {}, "tree": ["x"]}, ["malformed tree"]),
    ({"items": {"x": 5}, "tree": [NODE_X]}, ["malformed tree"]),
    ({"items": {"x": {}}, "tree": [NODE_X]}, ["malformed tree"]),
    ({"items": {"x": {"id": "y"}}, "tree": [NODE_X]}, ["malformed tree"]),
    ({"items": {"": {"id": ""}}, "tree": [{"id": "", "children": []}]}, ["malformed tree"]),
    (
        {"items": {"_root": {"id": "_root"}}, "tree": [{"id": "_root", "children": []}]},
        ["malformed tree"],
    ),
    ({"items": {"x": {"id": "x"}}, "tree": [{"id": "x"}]}, ["malformed tree"]),
    ({"items": {"x": {"id": "x"}}, "tree": [{"id": "x", "children": {}}]}, ["malformed tree"]),
    ({"items": {"x": {"id": "x"}}, "tree": [{**NODE_X, "more": 1}]}, ["malformed tree"]),
    ({"items": {}, "tree": [{"id": 5, "children": []}]}, ["malformed tree"]),
    ({"items": {}, "tree": [NODE_X]}, ["missing item"]),
    ({"items": {"x": {"id": "x"}}, "tree": []}, ["orphan item"]),
    ({"items": {"x": {"id": "x"}}, "tree": [NODE_X, NODE_X]}, ["duplicate node"]),
    (
        {"items": {"x": {"id": "x"}}, "tree": [{"id": "x", "children": [NODE_X]}]},
        ["duplicate node"],
    ),
    ({"items": {"x": {"id": "x"}}, "tree": [NODE_Y]}, ["missing item", "orphan item"]),
]


@pytest.mark.parametrize(("value", "failed"), BROKEN)
def test_broken_invariants(value: Any, failed: list[str]) -> None:
    """A tree that breaks invariants is refused with their names, by `set` and by `load`."""
    event = act("set", value=value, options={"replace": True})
    assert faults(forest(), event) == [("value", name) for name in failed]
    with pytest.raises(ValueError, match=f"target t: {', '.join(failed)}"):
        TreeState.load(MODEL, {"t": value})


def test_set_tree() -> None:
    """A whole tree that satisfies the invariants takes the place of the old one."""
    value = {"items": ITEMS, "tree": [{"id": "x", "children": [NODE_Y]}]}
    for options in ({}, {"replace": True}):
        state = forest()
        assert faults(state, act("set", value=value, options=options)) == []
        state.apply(act("set", value=value, options=options))
        assert state.export()["t"] == value


def test_set_tree_merges() -> None:
    """Without `replace` the half that is not given stays, and the result is judged."""
    state = state_of(push("x"), push("y"))
    assert shape(state) == "y x"
    assert faults(state, act("set", value={})) == []
    assert faults(state, act("set", value={"tree": [NODE_X]})) == [("value", "orphan item")]
    assert faults(state, act("set", value={"items": {}})) == [("value", "missing item")]
    assert faults(state, act("set", value={"more": 1})) == [("value", "malformed tree")]
    state.apply(act("set", value={"tree": [NODE_X, NODE_Y]}))
    assert shape(state) == "x y"


def test_unset_tree() -> None:
    """A whole tree target is reset to empty (sync D52)."""
    state = forest()
    assert faults(state, act("unset")) == []
    state.apply(act("unset"))
    assert state.export() == {"t": EMPTY, "u": EMPTY}
    assert state.size == 0


# What means nothing to the reducer.


@pytest.mark.parametrize(
    "event",
    [
        {"type": "event", "payload": {"schema": "s", "data": {}}},
        {"type": "init", "payload": {}},
        act("treePush", "gone", value={"id": "a"}),
        act("set", "gone.x", value=1),
        act("treePush", "v", value={"id": "a"}),
    ],
)
def test_unknown_events_change_nothing(event: dict[str, Any]) -> None:
    """Types of other profiles and targets that are not registered are passed over (sync D45)."""
    state = forest()
    before = state.export()
    assert state.check(event) == []
    undo = state.apply(event)
    assert state.export() == before
    undo()
    assert state.export() == before


@pytest.mark.parametrize(
    "event",
    [
        move("a", position={"after": "x"}),
        move("a", parent="x"),
        push("e", position={"before": "x"}),
        act("treeDelete", options={"id": "x"}),
    ],
)
def test_an_event_that_did_not_pass_leaves_nothing(event: dict[str, Any]) -> None:
    """Applying what `check` refuses raises and changes nothing."""
    state = forest()
    before, size = state.export(), state.size
    with pytest.raises((KeyError, AssertionError)):
        state.apply(event)
    assert (state.export(), state.size) == (before, size)


# Undo.


@pytest.mark.parametrize(
    "event",
    [
        push("e", position={"after": "y"}),
        move("y"),
        move("y", position="last"),
        move("y", parent="w"),
        move("z", position={"before": "y"}),
        act("treeDelete", options={"id": "y"}),
        act("treeDelete", options={"id": "z"}),
        act("treeUpdate", value={"k": 1}, options={"id": "y"}),
        act("treeUpdate", value={"k": 1}, options={"id": "y", "replace": True}),
        act("unset"),
        act("set", value={"items": {}, "tree": []}),
        act("set", "v", value={"a": 2, "c": 3}),
        act("set", "v", value=5),
        act("set", "v.b.c.d", value=5),
        act("unset", "v.a"),
        act("unset", "v"),
    ],
)
def test_undo(event: dict[str, Any]) -> None:
    """A change in the middle of a tree or a value is taken back without a trace."""
    state = state_of(
        *(push(name, position="last") for name in "wxyz"),
        push("child", parent="y"),
        act("set", "v", value={"a": 1, "b": None}),
    )
    before, size = state.export(), state.size
    assert faults(state, event) == []
    undo = state.apply(event)
    assert state.export() != before
    undo()
    assert (state.export(), state.size) == (before, size)


# Ownership, size, loading.


def test_state_is_not_shared() -> None:
    """Changing an event or an export afterwards does not reach the state."""
    item = {"id": "a", "tags": [{"x": 1}]}
    whole = {"items": {"b": {"id": "b", "l": [1]}}, "tree": [{"id": "b", "children": []}]}
    state = state_of(
        act("treePush", value=item),
        act("set", "u", value=whole),
        act("set", "v", value={"l": {"m": [1]}}),
    )
    update = act("treeUpdate", value={"more": [1]}, options={"id": "a"})
    state.apply(update)
    before = state.export()
    item["tags"][0]["x"] = 2  # type: ignore[index]
    whole["items"]["b"]["l"].append(2)  # type: ignore[index]
    whole["tree"].clear()  # type: ignore[attr-defined]
    update["payload"]["value"]["more"].append(2)
    exported = state.export()
    loaded = TreeState.load(MODEL, exported)
    exported["v"]["l"]["m"].append(2)
    exported["t"]["items"]["a"]["tags"].append(2)
    exported["t"]["tree"].clear()
    assert state.export() == loaded.export() == before


def test_load_refuses_unregistered_targets() -> None:
    """A state of another registry is not read as if it were one of this."""
    with pytest.raises(ValueError, match="no target gone is registered"):
        TreeState.load(MODEL, {"gone": 1})


def test_size_grows_with_text() -> None:
    """A long text weighs more than a short one."""
    short = state_of(act("set", "v.a", value="x"))
    long = state_of(act("set", "v.a", value="x" * 64_000))
    assert long.size == short.size + 1000


def test_size_returns_to_nothing() -> None:
    """What is removed no longer counts, its name included."""
    name = "n" * 200
    state = state_of(push(name), act("set", "v", value={name: [1, {name: 2}]}))
    full = state.size
    state.apply(act("treeDelete", options={"id": name}))
    state.apply(act("unset", f"v.{name}"))
    assert 0 < state.size < full
    state.apply(act("unset", "v"))
    assert state.size == 0


def test_deep_trees() -> None:
    """Depth of a tree exhausts no stack: exporting, loading, deleting do not recurse."""
    state = TreeState(MODEL)
    for index in range(20_000):
        state.apply(push(str(index), parent=str(index - 1) if index else "_root"))
    [fault] = state.check(move("0", parent="19999"))
    assert fault.field == "event.payload.options.parent"
    again = TreeState.load(MODEL, state.export())
    assert again.size == state.size
    undo = again.apply(act("treeDelete", options={"id": "0"}))
    assert again.size == 0
    undo()
    assert again.size == state.size


# Comparison with a naive reducer.


def places(forest: list[Any], parent: str = "_root") -> Iterator[tuple[str, list[Any], int]]:
    """Every node of a nested tree: its parent's id, its parent's list and its index in it."""
    for index, node in enumerate(forest):
        yield parent, forest, index
        yield from places(node["children"], node["id"])


def naive_place(forest: list[Any], name: str) -> tuple[str, list[Any], int]:
    """Where a node is."""
    return next(place for place in places(forest) if place[1][place[2]]["id"] == name)


def naive_ids(forest: list[Any]) -> list[str]:
    """All node ids, top down."""
    return [siblings[index]["id"] for _, siblings, index in places(forest)]


def naive_children(forest: list[Any], name: str) -> list[Any]:
    """The list below a node or the top."""
    if name == "_root":
        return forest
    _, siblings, index = naive_place(forest, name)
    children: list[Any] = siblings[index]["children"]
    return children


def naive_invariants(value: Any) -> set[str]:
    """What a well-typed `{items, tree}` breaks; only such values are generated."""
    if set(value) != {"items", "tree"}:
        return {"malformed tree"}
    ids = naive_ids(value["tree"])
    if any(item["id"] != key for key, item in value["items"].items()):
        return {"malformed tree"}
    return {
        name
        for name, broken in {
            "missing item": set(ids) - set(value["items"]),
            "orphan item": set(value["items"]) - set(ids),
            "duplicate node": len(ids) != len(set(ids)),
        }.items()
        if broken
    }


def naive_check(state: dict[str, Any], event: dict[str, Any]) -> list[str]:
    """The fields that sync 13.3 names, and the messages of sync 13.4."""
    action, payload = event["type"], event["payload"]
    target, options = payload["target"], payload.get("options", {})
    wrong = []
    if action in ("set", "unset") and target not in ("t", "u"):
        if action == "set" and isinstance(payload["value"], list) and not options.get("replace"):
            wrong.append("value")
        name = "v.n" if target.split(".")[:2] == ["v", "n"] else "v"
        current = state.get(name)
        for segment in target.split(".")[len(name.split(".")) :]:
            if current is not None and not isinstance(current, dict):
                wrong.append("target")
                break
            current = (current or {}).get(segment)
        return sorted(wrong)
    if action == "unset":
        return []
    if action == "set":
        value = payload["value"]
        result = value if options.get("replace") else {**state[target], **value}
        return sorted(naive_invariants(result))
    tree = state[target]
    moved, below = None, set()
    if action == "treePush":
        if payload["value"]["id"] in [*tree["items"], "_root"]:
            wrong.append("value.id")
    elif options["id"] not in tree["items"]:
        wrong.append("options.id")
    else:
        moved = options["id"]
        below = {moved, *naive_ids(naive_children(tree["tree"], moved))}
    if action == "treeUpdate" and payload["value"].get("id", options["id"]) != options["id"]:
        wrong.append("value.id")
    if action in ("treePush", "treeMove"):
        parent = options.get("parent", "_root")
        if parent not in [*tree["items"], "_root"] or (action == "treeMove" and parent in below):
            wrong.append("options.parent")
        elif isinstance(options.get("position"), dict):
            [(side, sibling)] = options["position"].items()
            siblings = [node["id"] for node in naive_children(tree["tree"], parent)]
            if sibling not in siblings or sibling == moved:
                wrong.append(f"options.position.{side}")
    return sorted(wrong)


def naive_apply(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """The state after an event, as a new object."""
    state, event = deepcopy(state), deepcopy(event)
    action, payload = event["type"], event["payload"]
    target, options = payload["target"], payload.get("options", {})
    replace = options.get("replace", False)
    if action in ("set", "unset"):
        if target in ("t", "u"):
            if action == "unset":
                state[target] = deepcopy(EMPTY)
            else:
                state[target] = (
                    payload["value"] if replace else {**state[target], **payload["value"]}
                )
            return state
        name = "v.n" if target.split(".")[:2] == ["v", "n"] else "v"
        path = [name, *target.split(".")[len(name.split(".")) :]]
        holder = state
        for segment in path[:-1]:
            if holder.get(segment) is None:
                if action == "unset":
                    return state
                holder[segment] = {}
            holder = holder[segment]
        if action == "unset":
            holder.pop(path[-1], None)
        elif (
            not replace
            and isinstance(holder.get(path[-1]), dict)
            and isinstance(payload["value"], dict)
        ):
            holder[path[-1]] = {**holder[path[-1]], **payload["value"]}
        else:
            holder[path[-1]] = payload["value"]
        return state
    tree = state[target]
    if action == "treeUpdate":
        old = {} if replace else tree["items"][options["id"]]
        tree["items"][options["id"]] = {**old, **payload["value"], "id": options["id"]}
        return state
    if action == "treePush":
        tree["items"][payload["value"]["id"]] = payload["value"]
        node = {"id": payload["value"]["id"], "children": []}
    else:
        _, siblings, index = naive_place(tree["tree"], options["id"])
        node = siblings.pop(index)
    if action == "treeDelete":
        for name in naive_ids([node]):
            del tree["items"][name]
        return state
    children = naive_children(tree["tree"], options.get("parent", "_root"))
    position = options.get("position", "first")
    ids = [child["id"] for child in children]
    if position == "first":
        children.insert(0, node)
    elif position == "last":
        children.append(node)
    elif "after" in position:
        children.insert(ids.index(position["after"]) + 1, node)
    else:
        children.insert(ids.index(position["before"]), node)
    return state


ALL_IDS = [*"abcdef", "long" * 40]
IDS = st.sampled_from(ALL_IDS)
NAMES = IDS | st.just("_root")
JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "x", "y" * 70]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abn"), inner, max_size=2)
    ),
    max_leaves=4,
)
MEMBERS = st.dictionaries(st.sampled_from(["name", "tags", "k" * 70]), JSON, max_size=2)
POSITIONS = st.sampled_from(["first", "last"]) | st.builds(
    lambda side, name: {side: name}, st.sampled_from(["after", "before"]), IDS
)
TREES = st.sampled_from(["t", "u"])
PATHS = st.lists(st.sampled_from(["a", "b", "n"]), max_size=3).map(
    lambda path: ".".join(["v", *path])
)
REPLACE = st.fixed_dictionaries({}, optional={"replace": st.booleans()})
PLACE = {"parent": NAMES, "position": POSITIONS}


@st.composite
def whole_trees(draw: st.DrawFn) -> dict[str, Any]:
    """A `{items, tree}` that is often right and otherwise wrong in one of the named ways."""
    ids = draw(st.lists(IDS, unique=True, max_size=5))
    value: dict[str, Any] = {"items": {}, "tree": []}
    lists = [value["tree"]]
    for name in ids:
        value["items"][name] = {**draw(MEMBERS), "id": name}
        node: dict[str, Any] = {"id": name, "children": []}
        draw(st.sampled_from(lists)).append(node)
        lists.append(node["children"])
    name = draw(IDS)
    match draw(st.integers(0, 9)):
        case 0:
            value["items"].pop(name, None)
        case 1:
            value["items"][name] = {"id": name}
        case 2:
            draw(st.sampled_from(lists)).append({"id": name, "children": []})
        case 3:
            value["items"][name] = {"id": "other"}
        case 4:
            del value[draw(st.sampled_from(["items", "tree"]))]
        case 5:
            value["more"] = 1
        case _:
            pass
    return value


def payloads(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Payloads with all these members."""
    return st.fixed_dictionaries(members)


def events_of(
    action: str, payload: st.SearchStrategy[dict[str, Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    """Events of one action."""
    return payload.map(lambda drawn: {"type": action, "payload": drawn})


ITEM = st.builds(lambda members, name: {**members, "id": name}, MEMBERS, NAMES)
OWN = st.fixed_dictionaries({"id": NAMES})
EVENTS = st.one_of(
    events_of(
        "treePush",
        payloads(target=TREES, value=ITEM, options=st.fixed_dictionaries({}, optional=PLACE)),
    ),
    events_of(
        "treeMove",
        payloads(target=TREES, options=st.fixed_dictionaries({"id": NAMES}, optional=PLACE)),
    ),
    events_of("treeDelete", payloads(target=TREES, options=OWN)),
    events_of(
        "treeUpdate",
        payloads(
            target=TREES,
            value=MEMBERS | ITEM,
            options=st.fixed_dictionaries({"id": NAMES}, optional={"replace": st.booleans()}),
        ),
    ),
    events_of("set", payloads(target=TREES, value=whole_trees(), options=REPLACE)),
    events_of("set", payloads(target=PATHS, value=JSON, options=REPLACE)),
    events_of("unset", payloads(target=TREES | PATHS)),
)


@st.composite
def programs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Pushes that fill a tree, so that most of what follows has something to act on."""
    program: list[dict[str, Any]] = []
    for index, name in enumerate(draw(st.permutations(ALL_IDS))):
        parents = ["_root", *(event["payload"]["value"]["id"] for event in program[:index])]
        parent = draw(st.sampled_from(parents[:3]))
        program.append(push(name, parent=parent, position=draw(st.sampled_from(["first", "last"]))))
    return program + draw(st.lists(EVENTS, max_size=20))


def verdict(found: list[Fault]) -> list[str]:
    """What the naive reducer also says: fields, or the names of broken invariants."""
    names = ("malformed tree", "missing item", "orphan item", "duplicate node")
    return sorted(
        message if message in names else field.removeprefix("event.payload.")
        for field, message in found
    )


@settings(max_examples=4 * settings().max_examples)
@given(programs())
def test_agrees_with_the_naive_reducer(program: list[dict[str, Any]]) -> None:
    """Verdict, state and invariants after every event are those of the contract's own words."""
    state, naive = TreeState(MODEL), TreeState(MODEL).export()
    for event in program:
        assert tree_faults(MODEL, event) == []
        found = state.check(event)
        assert verdict(found) == naive_check(naive, event)
        assert state.export() == naive
        if not found:
            state.apply(event)
            naive = naive_apply(naive, event)
        assert state.export() == naive
        assert not naive_invariants(naive["t"]) | naive_invariants(naive["u"])
    loaded = TreeState.load(MODEL, state.export())
    assert (loaded.export(), loaded.size) == (naive, state.size)


@settings(max_examples=2 * settings().max_examples)
@given(programs(), st.data())
def test_undo_restores(program: list[dict[str, Any]], data: st.DataObject) -> None:
    """Changes taken back latest first give every earlier state again, and it works on."""
    state = TreeState(MODEL)
    history = []
    for event in program:
        if not state.check(event):
            history.append((state.export(), state.size, state.apply(event)))
        for _ in range(data.draw(st.integers(0, len(history) // 4))):
            exported, size, undo = history.pop()
            undo()
            assert (state.export(), state.size) == (exported, size)
    while history:
        exported, size, undo = history.pop()
        undo()
        assert (state.export(), state.size) == (exported, size)
    assert state.size == 0


# Cost.


def broad(siblings: int) -> TreeState:
    """A tree with so many nodes under the top; `m` is in the middle and `z` at the end."""
    ids = [str(index) for index in range(siblings)]
    ids[siblings // 2], ids[-1] = "m", "z"
    whole = {
        "items": {name: {"id": name} for name in ids},
        "tree": [{"id": name, "children": []} for name in ids],
    }
    return TreeState.load(MODEL, {"t": whole})


BROAD = (broad(100), broad(100_000))


def seconds_per_event(state: TreeState, event: dict[str, Any]) -> float:
    """Median processor time of judging, applying and taking back."""
    times = []
    for _ in range(300):
        started = time.thread_time()
        faults = state.check(event)
        state.apply(event)()
        times.append(time.thread_time() - started)
        assert faults == []
    return median(times)


@pytest.mark.parametrize(
    "event",
    [
        move("m", position={"after": "z"}),
        move("z", position={"before": "m"}),
        move("m", parent="z", position="last"),
        push("new", position={"before": "m"}),
        act("treeDelete", options={"id": "m"}),
        act("treeUpdate", value={"name": "N"}, options={"id": "m"}),
    ],
)
def test_cost_does_not_grow_with_the_tree(event: dict[str, Any]) -> None:
    """Tree actions among 100,000 siblings cost what they cost among 100, not 1,000 times that."""
    assert seconds_per_event(BROAD[1], event) < 20 * seconds_per_event(BROAD[0], event)
