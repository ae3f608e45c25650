"""The tree state of one partition, as decisions look at it and move it on."""

from collections.abc import Callable
from typing import Any

from tidelog.sync.protocol.tree import TreeState


class PartitionState:
    """The state of one partition at one position."""

    __slots__ = ("_grown", "name", "position", "tree")

    def __init__(self, name: str, tree: TreeState, grown: Callable[[int], None]) -> None:
        """`grown` takes by how much the size of the tree has changed."""
        self._grown = grown
        self.name = name
        self.tree = tree
        self.position = 0
        """The last event it includes, or the last one known not to concern it."""

    def follow(self, committed_id: int, event: dict[str, Any]) -> Callable[[], None]:
        """Apply the next event of the partition; returns how to take it back."""
        position, size = self.position, self.tree.size
        undo = self.tree.apply(event)
        growth = self.tree.size - size
        self.position = committed_id
        self._grown(growth)

        def take_back() -> None:
            undo()
            self.position = position
            self._grown(-growth)

        return take_back
