"""What an application adds to sync: its own rules, written in Python.

Derive from `Plugin`, override what you need, and name it in the setting `sync.plugin` as
`module:attribute`. `docs/howto/sync-plugin.md` walks through one.

Every method must be pure: its result follows from its arguments and nothing else. No clock, no
files, no network, no randomness, no memory of earlier calls. The server cannot enforce that, but
relies on it: a method may be called twice for the same event (a batch that did not commit is
decided again, a check that took too long is repeated), and for events that are never stored.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import ROOT
from tidelog.sync.protocol.tree import TreeState

__all__ = ["Access", "Event", "Fault", "Identity", "Plugin", "State"]

Access = Literal["read", "write"]
"""`read`: sync and subscribe. `write`: submit."""


class Identity(Struct, frozen=True):
    """Who asks, as the verified token says."""

    client_id: str
    claims: Mapping[str, Any]
    """All claims of the token, including those that sync itself does not know, such as a role."""


class Event(Struct, frozen=True):
    """A submitted event; a copy of what will be stored, so changing it changes nothing."""

    id: str
    identity: Identity
    partitions: tuple[str, ...]
    """In their normal form, sorted."""
    type: str
    """`event`, or an action of the tree profile such as `treePush`."""
    payload: dict[str, Any]
    """`schema`, `data` and `meta` of an event; `target`, `value` and `options` of a tree action."""
    meta: dict[str, Any] = {}
    """What came beside them: of a client that speaks insieme's dialect `schemaVersion`, `clientTs`
    and `userId`."""


class State:
    """One partition's state, to be looked at during one `check` and not kept beyond it.

    It is what the tree actions committed so far made of the partition, those before the event in
    the same request included. Events of the event profile leave no state on the server. What the
    methods return is a copy; ask for the part you need rather than for the whole.
    """

    def __init__(self, partition: str, tree: TreeState) -> None:
        self.partition = partition
        """Its name in normal form."""
        self._tree = tree

    def item(self, target: str, item_id: str) -> dict[str, Any] | None:
        """An item of a tree target, or None if there is none of that id."""
        return self._tree.item(target, item_id)

    def parent(self, target: str, item_id: str) -> str | None:
        """The id of an item's parent: `_root` at the top, None if there is no such item."""
        return self._tree.parent(target, item_id)

    def children(self, target: str, item_id: str = ROOT) -> Iterator[str]:
        """The ids of an item's children in order; without `item_id`, of those at the top."""
        return self._tree.children(target, item_id)

    def count(self, target: str) -> int:
        """How many items a tree target has."""
        return self._tree.count(target)

    def value(self, path: str) -> Any:
        """What is at a value target or at a dotted path below one; None if nothing is."""
        return self._tree.value(path)


class Plugin:
    """The rules of an application; each method here lets everything pass.

    A result of the wrong type, such as a string instead of a list, and an exception count as a
    refusal of that one event or partition; the others in the request are not affected. Refusals
    reach the client in the order that the protocol fixes (sync 8.2), so a method is not called for
    what was refused before its turn.
    """

    def authorize(self, identity: Identity, partition: str, access: Access) -> bool:
        """Whether a client may read or write a partition that its token opens.

        Asked in addition to the token, never instead of it: both must agree (sync D18). A refusal
        is `forbidden`.
        """
        del identity, partition, access
        return True

    def validate(self, event: Event) -> Iterable[Fault]:
        """What is wrong with an event whatever the state; nothing if it is fine.

        Called before the event waits for its turn, after its profile and schema found no fault. A
        fault is `validation_failed`, and `Fault.field` is a dot path such as
        `event.payload.data.title`.
        """
        del event
        return ()

    def check(self, state: State, event: Event) -> Iterable[Fault]:
        """What is wrong with an event given a partition's state; nothing if it is fine.

        Called last, for each partition of the event in sorted order until one finds a fault. All
        writers of the server wait meanwhile, so all of these calls together have
        `sync.plugin_budget_ms` of processor time per event; an event whose check uses more is
        refused.
        """
        del state, event
        return ()


def overrides(plugin: Plugin, method: str) -> bool:
    """Whether a plug-in overrides a method."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)


def load_plugin(setting: str) -> Plugin:
    """The plug-in that `sync.plugin` names: an object, or a class that needs no arguments.

    Raises:
        ConfigError: there is none; the text says what to do.
    """
    module_name, _, attribute = setting.partition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f"sync.plugin: {setting!r} is not module:attribute, such as my_application.rules:Rules"
        )
    try:
        found = getattr(import_module(module_name), attribute)
        plugin = found() if isinstance(found, type) and issubclass(found, Plugin) else found
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"sync.plugin: {setting}: there is no module {error.name}. Install it where tidelog "
            "is installed, or put its directory into PYTHONPATH."
        ) from error
    except AttributeError as error:
        raise ConfigError(f"sync.plugin: {setting}: {error}") from error
    except Exception as error:  # whatever the application's module raises when it is imported
        raise ConfigError(
            f"sync.plugin: {setting} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(plugin, Plugin):
        raise ConfigError(
            f"sync.plugin: {setting} is of type {type(plugin).__name__}; must be a subclass of "
            "tidelog.sync.plugin.Plugin, or an object of one"
        )
    for method in ("authorize", "validate", "check"):
        if inspect.iscoroutinefunction(getattr(plugin, method)):
            raise ConfigError(
                f"sync.plugin: {setting}: {method} is `async def`; a pure function has nothing to "
                "wait for. Make it a plain `def`."
            )
    return plugin
