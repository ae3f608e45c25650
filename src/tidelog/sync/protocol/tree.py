"""The state of one partition under the tree profile: which events it allows and what they do to it.

A tree is kept as nodes that know their parent and both neighbours, so that every tree action costs
the same among ten siblings and among a hundred thousand; the nested form of the protocol
(`{items, tree}`) is written and read as a whole only. Every change leaves an undo list: a decision
is tried on the real state and taken back if its batch does not commit.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import ROOT, TREE, TREE_ACTIONS, Address, Model

Undo = Callable[[], None]
"""Takes one change back. Changes are taken back latest first, each at most once."""

MALFORMED_TREE = "malformed tree"
MISSING_ITEM = "missing item"
ORPHAN_ITEM = "orphan item"
DUPLICATE_NODE = "duplicate node"

VALUE_BYTES = 128
"""Memory of one node or JSON value; measured between 75 and 140."""

STATE_BYTES = 1024
"""Memory of a state with nothing in it; one that counted for nothing would never be forgotten."""

_TEXT_LENGTH = 64
"""Characters that take about as much memory as a value does."""

_ABSENT: Any = object()


class TreeNode(NamedTuple):
    """A node as it is shown: where it is, and what it holds."""

    id: str
    parent: str
    """`ROOT` at the top."""
    depth: int
    """0 at the top."""
    item: dict[str, Any]


def snapshot_digest(state: bytes) -> bytes:
    """What tells a stored state from a damaged one, so that loading need not check it anew."""
    return blake2b(state, digest_size=16).digest()


class TreeState:
    """All targets of one partition.

    Every registered tree target always has a value, `{items: {}, tree: []}` at first; a value
    target has one from its first `set` to its `unset`. The state shares no object with the events
    it was given nor with what it exports.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._trees = {
            name: _Tree() for name, target in model.targets.items() if target.kind == TREE
        }
        self._values: dict[str, Any] = {}
        self.size = 0
        """Nodes and JSON values in it, long texts counted as several: for whoever bounds a cache.
        Depends on the contents only; 0 when there are none."""

    @classmethod
    def load(
        cls, model: Model, exported: Mapping[str, Any], *, is_given: bool = False
    ) -> "TreeState":
        """The state that was exported; `ValueError` if it is none of this model's states.

        `is_given`: it is known to be one, and the caller gives it up. It is then neither checked
        nor copied, which is most of the work.
        """
        state, edit = cls(model), _Edit()
        copied: Callable[[Any], Any] = _same if is_given else _copied
        for name, value in exported.items():
            if name not in model.targets:
                raise ValueError(f"no target {name} is registered")
            if name in state._trees:
                if not is_given and (failed := _failed_invariants(value)):
                    raise ValueError(f"target {name}: {', '.join(sorted(failed))}")
                edit.put(state._trees, name, _Tree.read(value, copied(value["items"])))
            else:
                edit.put(state._values, name, copied(value))
        state.size = edit.growth
        return state

    def export(self) -> dict[str, Any]:
        """The state as JSON (sync 13.1), independent of this object.

        Two JSON levels for each level of a tree: a tree may be deeper than a JSON writer can go.
        """
        exported: dict[str, Any] = {name: tree.written() for name, tree in self._trees.items()}
        exported.update(_copied(self._values))
        return exported

    # Looking at parts of it; an unknown target is a `KeyError`.

    def item(self, target: str, item_id: str) -> dict[str, Any] | None:
        """A copy of one item of a tree target."""
        found = self._trees[target].items.get(item_id)
        return None if found is None else {name: _copied(value) for name, value in found.items()}

    def parent(self, target: str, item_id: str) -> str | None:
        """The id of a node's parent, `ROOT` at the top; None if there is no such node."""
        node = self._trees[target].nodes.get(item_id)
        return None if node is None or node.parent is None else node.parent.id

    def children(self, target: str, item_id: str, after: str | None = None) -> Iterator[str]:
        """The ids of a node's children, or of those at the top for `ROOT`, in their order.

        `after`: only those after that one; `KeyError` if it is none of them.
        """
        tree = self._trees[target]
        top = tree.parent({"parent": item_id})
        child = None if top is None else top.first
        if after is not None:
            before = tree.nodes[after]
            if before.parent is not top:
                raise KeyError(after)
            child = before.after
        while child is not None:
            yield child.id
            child = child.after

    def nodes(self, target: str, after: str | None = None) -> Iterator[TreeNode]:
        """All nodes of a tree target, parents before children and siblings in their order.

        `after`: only those after that one, which is found without going through those before it.
        """
        tree = self._trees[target]
        node = tree.root if after is None else tree.nodes[after]
        while (following := node.following()) is not None:
            node = following
            assert node.parent  # noqa: S101 - only the root has none
            item = {name: _copied(value) for name, value in tree.items[node.id].items()}
            yield TreeNode(node.id, node.parent.id, node.depth(), item)

    def count(self, target: str) -> int:
        """The number of items of a tree target."""
        return len(self._trees[target].items)

    def value(self, path: str) -> Any:
        """A copy of what is at a value target or below it; None if nothing is."""
        address = self._model.find("set", path)
        if address is None or address.target.kind == TREE:
            raise KeyError(path)
        reached = self._reach(address)
        if reached is None or reached[2]:
            return None
        members, name, _ = reached
        return _copied(members.get(name))

    def check(self, event: Mapping[str, Any]) -> list[Fault]:
        """Why the event cannot be applied here (gates 4 to 6 of sync 13.2); changes nothing.

        The event has passed `profiles.tree_faults`. One that means nothing to this
        reducer (see `apply`) always can be applied.
        """
        action, payload = event["type"], event["payload"]
        address = self._address(action, payload)
        if address is None:
            return []
        if address.target.kind == TREE:
            return sorted(self._tree_faults(self._trees[address.target.name], action, payload))
        return sorted(self._value_faults(address, action, payload))

    def apply(self, event: Mapping[str, Any]) -> Undo:
        """Apply an event that has passed `check`; returns what takes it back.

        An event that means nothing to this reducer changes nothing: a type of another profile
        (sync D45), or a target that is not registered here, or no longer.
        """
        action, payload = event["type"], event["payload"]
        address = self._address(action, payload)
        edit = _Edit()
        try:
            if address is not None and address.target.kind == TREE:
                self._change_tree(edit, address.target.name, action, payload)
            elif address is not None:
                self._change_value(edit, address, action, payload)
        except BaseException:  # the event had not passed `check`: leave nothing half done
            edit.undo()
            raise
        self.size += edit.growth
        return partial(self._take_back, edit)

    def _take_back(self, edit: "_Edit") -> None:
        self.size -= edit.growth
        edit.undo()

    def _address(self, action: str, payload: Mapping[str, Any]) -> Address | None:
        if action not in TREE_ACTIONS:
            return None
        address = self._model.find(action, payload["target"])
        if address and address.target.kind != TREE and action not in ("set", "unset"):
            return None
        return address

    # Tree targets.

    def _tree_faults(
        self, tree: "_Tree", action: str, payload: Mapping[str, Any]
    ) -> Iterator[Fault]:
        options = payload.get("options", {})
        if action == "set":
            if array := _array_fault(payload):
                yield array
                return
            for failed in _failed_invariants(_resulting_tree(tree, payload)):
                yield Fault("event.payload.value", failed)
        elif action == "treePush":
            if payload["value"]["id"] in tree.nodes:
                yield Fault("event.payload.value.id", "duplicate id")
            elif payload["value"]["id"] == ROOT:
                yield Fault("event.payload.value.id", "is reserved")
            yield from _place_faults(tree, None, options)
        elif action != "unset":
            node = tree.nodes.get(options["id"])
            if node is None:
                yield Fault("event.payload.options.id", "unknown id")
            if action == "treeMove":
                yield from _place_faults(tree, node, options)
            if (
                action == "treeUpdate"
                and payload["value"].get("id", options["id"]) != options["id"]
            ):
                yield Fault("event.payload.value.id", "differs from options.id")

    def _change_tree(
        self, edit: "_Edit", name: str, action: str, payload: Mapping[str, Any]
    ) -> None:
        tree, options = self._trees[name], payload.get("options", {})
        match action:
            case "set":
                value = _resulting_tree(tree, payload)
                edit.put(self._trees, name, _Tree.read(value, _copied(value["items"])))
            case "unset":
                edit.put(self._trees, name, _Tree())
            case "treePush":
                item = _copied(payload["value"])
                node = _Node(item["id"])
                edit.put(tree.items, node.id, item)
                edit.put(tree.nodes, node.id, node)
                edit.link(node, *_place(tree, options))
            case "treeDelete":
                node = tree.nodes[options["id"]]
                edit.unlink(node)
                for each in list(node.subtree()):
                    edit.drop(tree.items, each.id)
                    edit.drop(tree.nodes, each.id)
            case "treeUpdate":
                value = {**payload["value"], "id": options["id"]}
                if _replaces(payload):
                    edit.put(tree.items, options["id"], _copied(value))
                else:
                    edit.merge(tree.items[options["id"]], value)
            case _:  # treeMove
                node = tree.nodes[options["id"]]
                edit.unlink(node)
                edit.link(node, *_place(tree, options))

    # Value targets.

    def _value_faults(
        self, address: Address, action: str, payload: Mapping[str, Any]
    ) -> Iterator[Fault]:
        if action == "set" and (array := _array_fault(payload)):
            yield array
        if self._reach(address) is None:
            yield Fault("event.payload.target", "crosses a value that is not an object")

    def _change_value(
        self, edit: "_Edit", address: Address, action: str, payload: Mapping[str, Any]
    ) -> None:
        reached = self._reach(address)
        assert reached is not None, "the event has not passed check"  # noqa: S101 - the contract
        members, name, missing = reached
        if action == "unset":
            if not missing and name in members:
                edit.drop(members, name)
            return
        value, current = payload["value"], members.get(name)
        if isinstance(current, dict) and isinstance(value, dict) and not _replaces(payload):
            edit.merge(current, value)
            return
        value = _copied(value)
        for segment in reversed(missing):
            value = {segment: value}
        edit.put(members, name, value)

    def _reach(self, address: Address) -> tuple[dict[str, Any], str, tuple[str, ...]] | None:
        """How far the path exists: the last object on it, the member there, the segments beyond.

        `None` if something that is no object is in the way; null counts as absent (sync D52).
        """
        members, name = self._values, address.target.name
        for depth, segment in enumerate(address.path):
            below = members.get(name)
            if below is None:
                return members, name, address.path[depth:]
            if not isinstance(below, dict):
                return None
            members, name = below, segment
        return members, name, ()


class _Node:
    """A node of a tree. Links are `None` at the ends; only the root has no parent."""

    __slots__ = ("after", "before", "first", "id", "last", "parent")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.parent: _Node | None = None
        self.before: _Node | None = None
        self.after: _Node | None = None
        self.first: _Node | None = None
        self.last: _Node | None = None

    def link(self, parent: "_Node", before: "_Node | None") -> None:
        """Become a child of `parent`, right after its child `before` or as its first."""
        after = before.after if before else parent.first
        self.parent, self.before, self.after = parent, before, after
        if before:
            before.after = self
        else:
            parent.first = self
        if after:
            after.before = self
        else:
            parent.last = self

    def unlink(self) -> None:
        """Leave the parent, with everything below; the links of this node stay as they were."""
        parent, before, after = self.parent, self.before, self.after
        assert parent, "the root is never unlinked"  # noqa: S101 - invariant
        if before:
            before.after = after
        else:
            parent.first = after
        if after:
            after.before = before
        else:
            parent.last = before

    def subtree(self) -> "Iterator[_Node]":
        """This node and all below it, parents before children, siblings in order."""
        node = self
        while True:
            yield node
            if node.first:
                node = node.first
                continue
            while node is not self and node.after is None and node.parent:
                node = node.parent
            if node is self or node.after is None:
                return
            node = node.after

    def following(self) -> "_Node | None":
        """The next one in the whole tree, parents before children, siblings in order."""
        node: _Node | None = self
        if self.first:
            return self.first
        while node is not None and node.after is None:
            node = node.parent
        return None if node is None else node.after

    def depth(self) -> int:
        """How many nodes are above this one, the root not counted."""
        depth, node = -1, self.parent
        while node is not None:
            depth, node = depth + 1, node.parent
        return depth

    def is_within(self, top: "_Node") -> bool:
        """Whether this is `top` or below it."""
        node: _Node | None = self
        while node is not None and node is not top:
            node = node.parent
        return node is top


class _Tree:
    """A tree target: `nodes` and `items` have the same ids, and every node is below `root`."""

    __slots__ = ("items", "nodes", "root")

    def __init__(self) -> None:
        self.root = _Node(ROOT)
        self.nodes: dict[str, _Node] = {}
        self.items: dict[str, dict[str, Any]] = {}

    @classmethod
    def read(cls, value: Mapping[str, Any], items: dict[str, Any]) -> "_Tree":
        """The tree of a `{items, tree}` that satisfies the invariants; `items` are its own."""
        tree = cls()
        tree.items = items
        pending = [(tree.root, value["tree"])]
        for parent, children in pending:
            for child in children:
                node = tree.nodes[child["id"]] = _Node(child["id"])
                node.link(parent, parent.last)
                pending.append((node, child["children"]))
        return tree

    def written(self) -> dict[str, Any]:
        """The `{items, tree}` of this tree, independent of it."""
        items: dict[str, Any] = {}
        forest: list[Any] = []
        children: dict[str, list[Any]] = {ROOT: forest}
        nodes = self.root.subtree()
        next(nodes)
        for node in nodes:
            assert node.parent  # noqa: S101 - only the root has none
            items[node.id] = _copied(self.items[node.id])
            below: list[Any] = []
            children[node.parent.id].append({"id": node.id, "children": below})
            children[node.id] = below
        return {"items": items, "tree": forest}

    def parent(self, options: Mapping[str, Any]) -> _Node | None:
        """The node that `options` names as parent."""
        name = options.get("parent", ROOT)
        return self.root if name == ROOT else self.nodes.get(name)


class _Edit:
    """One change, made step by step, and how to take it back."""

    __slots__ = ("_steps", "growth")

    def __init__(self) -> None:
        self._steps: list[Undo] = []
        self.growth = 0

    def put(self, members: dict[str, Any], name: str, value: Any) -> None:
        """Set a member; `value` belongs to the state from now on."""
        old = members.get(name, _ABSENT)
        members[name] = value
        self._steps.append(partial(_restore, members, name, old))
        self.growth += weight_of(value)
        self.growth += len(name) // _TEXT_LENGTH if old is _ABSENT else -weight_of(old)

    def drop(self, members: dict[str, Any], name: str) -> None:
        """Remove a member that exists."""
        old = members.pop(name)
        self._steps.append(partial(_restore, members, name, old))
        self.growth -= weight_of(old) + len(name) // _TEXT_LENGTH

    def merge(self, members: dict[str, Any], value: Mapping[str, Any]) -> None:
        """Set copies of all members of `value`, one level deep."""
        for name, member in value.items():
            self.put(members, name, _copied(member))

    def link(self, node: _Node, parent: _Node, before: _Node | None) -> None:
        """Insert a node that is not in the tree."""
        node.link(parent, before)
        self._steps.append(node.unlink)

    def unlink(self, node: _Node) -> None:
        """Take a node out of the tree."""
        assert node.parent, "the root is never unlinked"  # noqa: S101 - invariant
        self._steps.append(partial(node.link, node.parent, node.before))
        node.unlink()

    def undo(self) -> None:
        """Take all steps back."""
        while self._steps:
            self._steps.pop()()


def _restore(members: dict[str, Any], name: str, old: Any) -> None:
    if old is _ABSENT:
        del members[name]
    else:
        members[name] = old


def _place(tree: _Tree, options: Mapping[str, Any]) -> tuple[_Node, _Node | None]:
    """The parent, and which of its children to come after, as the tree is now."""
    parent = tree.parent(options)
    assert parent, "the event has not passed check"  # noqa: S101 - the contract
    position = options.get("position", "first")
    if position == "first":
        return parent, None
    if position == "last":
        return parent, parent.last
    [(side, sibling)] = position.items()
    node = tree.nodes[sibling]
    return parent, node if side == "after" else node.before


def _place_faults(tree: _Tree, moved: _Node | None, options: Mapping[str, Any]) -> Iterator[Fault]:
    """Why nothing can be inserted there, or `moved` cannot."""
    parent = tree.parent(options)
    if parent is None:
        yield Fault("event.payload.options.parent", "unknown id")
        return
    if moved and parent.is_within(moved):
        yield Fault("event.payload.options.parent", "is the node itself or below it")
        return
    position = options.get("position", "first")
    if isinstance(position, dict):
        [(side, name)] = position.items()
        sibling = tree.nodes.get(name)
        if sibling is None or sibling is moved or sibling.parent is not parent:
            field = f"event.payload.options.position.{side}"
            yield Fault(field, "is not another child of that parent")


def _array_fault(payload: Mapping[str, Any]) -> Fault | None:
    if isinstance(payload["value"], list) and not _replaces(payload):
        return Fault("event.payload.value", "an array needs options.replace")
    return None


def _replaces(payload: Mapping[str, Any]) -> bool:
    return bool(payload.get("options", {}).get("replace", False))


def _resulting_tree(tree: _Tree, payload: Mapping[str, Any]) -> Any:
    """What `set` makes of a whole tree target; may share objects with `payload`."""
    value = payload["value"]
    if not isinstance(value, dict) or _replaces(payload):
        return value
    return value if value.keys() >= {"items", "tree"} else {**tree.written(), **value}


def _failed_invariants(value: Any) -> set[str]:
    """The names of the invariants of a tree target (sync 13.4) that `value` breaks.

    If the tree is malformed, that is the only one: its items and nodes cannot be looked at.
    """
    if not (
        isinstance(value, dict)
        and value.keys() == {"items", "tree"}
        and isinstance(value["items"], dict)
        and isinstance(value["tree"], list)
    ):
        return {MALFORMED_TREE}
    items = value["items"]
    for name, item in items.items():
        if name in ("", ROOT) or not isinstance(item, dict) or item.get("id") != name:
            return {MALFORMED_TREE}
    failed, seen = set(), set()
    pending = [value["tree"]]
    for children in pending:
        for node in children:
            if not _is_node(node):
                return {MALFORMED_TREE}
            if node["id"] not in items:
                failed.add(MISSING_ITEM)
            if node["id"] in seen:
                failed.add(DUPLICATE_NODE)
            seen.add(node["id"])
            pending.append(node["children"])
    if not items.keys() <= seen:
        failed.add(ORPHAN_ITEM)
    return failed


def _is_node(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and node.keys() == {"id", "children"}
        and isinstance(node["id"], str)
        and isinstance(node["children"], list)
    )


def _same(value: Any) -> Any:
    return value


def _copied(value: Any) -> Any:
    """The same JSON value in new containers.

    It may recurse: `strictjson.MAX_DEPTH` and `profiles.MAX_SEGMENTS` bound the depth.
    """
    if isinstance(value, dict):
        return {name: _copied(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_copied(element) for element in value]
    return value


def weight_of(value: Any) -> int:
    """What a JSON value, a node or a tree adds to `TreeState.size`."""
    weight = 0
    pending = [value]
    for each in pending:
        weight += 1
        if isinstance(each, str):
            weight += len(each) // _TEXT_LENGTH
        elif isinstance(each, dict):
            pending += each.values()
            weight += sum(len(name) // _TEXT_LENGTH for name in each)
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, _Tree):
            pending += (each.items, each.nodes)
    return weight
