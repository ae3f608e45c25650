"""The state of a partition, changed by one event at a time: by the tree rules or by a reducer."""

import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

from tidelog.client.sync.messages import Json
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import CANONICAL, TREE, TREE_ACTIONS, Model
from tidelog.sync.protocol.tree import TreeState, weight_of

EVENTS_PER_VALUE = 16
"""A state of an application's reducer is measured after as many events as it has values, divided by
this: the work is so many values for each event, and the state cannot have grown much unseen."""

Undo = Callable[[], None]

Reduce = Callable[[Json, Json], Json]
"""An application's reducer for the event profile: state and event to a new state. It must be pure,
must not change what it is given, and must ignore events it does not know."""


class Fold(Protocol):
    """The state of one partition, changed by one event at a time."""

    is_vetted: bool
    """Whether the server has the same rules, so that no committed event has a fault (sync D54)."""

    def faults(self, event: Json) -> list[Fault]:
        """Why the event cannot be applied to this state."""

    def apply(self, event: Json) -> Undo:
        """Apply an event without faults; returns what takes it back. Take back the latest first."""

    def export(self) -> Json:
        """The state as JSON, independent of this object."""

    def tree(self) -> TreeState:
        """The state where it consists of trees; `ValueError` where it does not."""

    def value(self, path: str) -> Any:
        """A copy of what is at a dotted path; None if nothing is."""

    def size(self) -> int:
        """As `TreeState.size`."""


class Folds(Protocol):
    """Makes states: empty ones, and ones from a snapshot."""

    def empty(self) -> Fold:
        """The state before the first event."""

    def load(self, exported: Json) -> Fold | None:
        """The state that was exported; None if these folds cannot read it."""


class TreeFold:
    """The tree profile's reducer, which ignores events that mean nothing to it (sync D45)."""

    is_vetted = True

    def __init__(self, model: Model, state: TreeState) -> None:
        self._model = model
        self._state = state
        self.export = state.export
        self.value = state.value

    def tree(self) -> TreeState:
        """See `Fold.tree`."""
        return self._state

    def size(self) -> int:
        """See `Fold.size`."""
        return self._state.size

    def faults(self, event: Json) -> list[Fault]:
        """Failed preconditions and invariants; an event of no known shape is a fault as well."""
        try:
            return self._state.check(event) if self._concerns(event) else []
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return [Fault("event.payload", f"malformed: {type(error).__name__}")]

    def apply(self, event: Json) -> Undo:
        """See `Fold.apply`."""
        return self._state.apply(event) if self._concerns(event) else _nothing

    def _concerns(self, event: Json) -> bool:
        action = event["type"]
        if action not in TREE_ACTIONS:
            return False
        address = self._model.find(action, event["payload"]["target"])
        if address is None:
            return False
        return address.target.kind == TREE or action in ("set", "unset")


class TreeFolds:
    """States of the tree profile."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def empty(self) -> Fold:
        """See `Folds.empty`."""
        return TreeFold(self._model, TreeState(self._model))

    def load(self, exported: Json) -> Fold | None:
        """See `Folds.load`."""
        try:
            return TreeFold(self._model, TreeState.load(self._model, exported))
        except (KeyError, TypeError, ValueError):
            return None


class EventFold:
    """An application's own reducer, which may fail; then the event is not applied."""

    is_vetted = False

    def __init__(self, reduce: Reduce, state: Json) -> None:
        self._reduce = reduce
        self._state = state
        self._tried: tuple[Json, Json] | None = None
        """The event last asked about, and the state it leads to: it is applied next, usually."""
        self._size = 0
        self._unmeasured = 0
        """Events until the size is taken anew; it is taken less often the larger it is."""

    def faults(self, event: Json) -> list[Fault]:
        """What the reducer raises; a state that is not an object is a fault as well."""
        try:
            after: object = self._reduce(self._state, event)
        except Exception as error:  # noqa: BLE001 - whatever the application's reducer raises
            return [Fault("event", f"the reducer raised {_described(error)}")]
        if not isinstance(after, dict):
            return [Fault("event", f"the reducer returned {type(after).__name__}, not a dict")]
        self._tried = (event, after)
        return []

    def apply(self, event: Json) -> Undo:
        """See `Fold.apply`."""
        tried, self._tried = self._tried, None
        if tried is None or tried[0] is not event:
            raise RuntimeError("ask for the faults of an event before it is applied")
        before, self._state = self._state, tried[1]
        self._unmeasured -= 1

        def undo() -> None:
            self._state, self._tried = before, None

        return undo

    def export(self) -> Json:
        """A copy, so that the application may change it."""
        return deepcopy(self._state)

    def tree(self) -> TreeState:
        """See `Fold.tree`."""
        raise ValueError(f"views of profile {CANONICAL} have no trees: read them with value()")

    def value(self, path: str) -> Any:
        """See `Fold.value`; a segment of digits is an index of a list."""
        found: Any = self._state
        for segment in path.split("."):
            if isinstance(found, dict):
                found = found.get(segment)
            elif isinstance(found, list) and segment.isdecimal() and int(segment) < len(found):
                found = found[int(segment)]
            else:
                return None
        return deepcopy(found)

    def size(self) -> int:
        """See `Fold.size`; does not count what the last few events have added."""
        if self._unmeasured <= 0:
            self._size = weight_of(self._state)
            self._unmeasured = self._size // EVENTS_PER_VALUE
        return self._size


class EventFolds:
    """States of the event profile."""

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce

    def empty(self) -> Fold:
        """See `Folds.empty`."""
        return EventFold(self._reduce, {})

    def load(self, exported: Json) -> Fold | None:
        """See `Folds.load`."""
        return EventFold(self._reduce, exported)


def unchanged(state: Json, event: Json) -> Json:
    """The reducer of an application that only reads the rows."""
    del event
    return state


def folds_for(profile: str, model: Model, reduce: Reduce) -> Folds:
    """The states of a profile: trees by the model, or what the application's reducer makes."""
    return EventFolds(reduce) if profile == CANONICAL else TreeFolds(model)


def _nothing() -> None:
    """The undo of an event that changed nothing."""


def _described(error: Exception) -> str:
    """An exception and where it was raised, in one line."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(raised.filename).name}, line {raised.lineno})"
