"""What a socket may do on which channels, and whether it may mutate a message (channels 2.5, 7)."""

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from tidelog.channels.protocol.verbs import MUTATION_VERBS, MutationVerb
from tidelog.channels.settings import Channels, History

MAX_PATTERNS = 100
"""Patterns of a token, and of one operation of a sign-in: each may be tried for each check."""

_DEFAULTS = frozenset({"subscribe", "publish", "history", "presence"})
"""Allowed to a signed-in socket that says nothing of them."""

RUN_CANCEL_ANY = "run_cancel_any"
"""Cancelling runs of others."""

STREAM = "stream"
"""Opens a channel as server-sent events to the bearer of a token, without another signature."""

OPERATIONS = (
    _DEFAULTS
    | {RUN_CANCEL_ANY, STREAM}
    | {f"message_{verb}_{scope}" for verb in MUTATION_VERBS for scope in ("own", "any")}
)
UNUSED_OPERATIONS = frozenset(
    {
        "annotation_subscribe",
        "annotation_publish",
        "annotation_delete_own",
        "annotation_delete_any",
        "object_subscribe",
        "object_publish",
        "push_admin",
        "push_subscribe",
    }
)
"""Names of the protocol that grant nothing here."""

_KNOWN = OPERATIONS | UNUSED_OPERATIONS


def matches(pattern: str, channel: str) -> bool:
    """Whether a pattern means a channel (channels 7.2); case counts, and `*` crosses `:`."""
    stars = pattern.count("*")
    if stars == 0:
        return pattern == channel
    if stars > 1:
        return False
    before, _, after = pattern.partition("*")
    return channel.startswith(before) and channel.endswith(after)


def history_off(history: History, channel: str) -> str | None:
    """The setting by which a channel keeps no history; None if it keeps one."""
    if not history.enabled:
        return "channels.history.enabled"
    for pattern in history.channels:
        if pattern == "*" or matches(pattern, channel):
            return None
    return "channels.history.channels"


def keeps_history(history: History, channel: str) -> bool:
    """Whether a channel keeps a history."""
    return history_off(history, channel) is None


def versions_off(settings: Channels, channel: str) -> str | None:
    """The setting by which the messages of a channel cannot change; None if they can."""
    if not settings.versioned_messages.enabled:
        return "channels.versioned_messages.enabled"
    return history_off(settings.history, channel)


class Capabilities(Struct, frozen=True):
    """What was granted to a socket, once, by a sign-in or a token."""

    is_token: bool
    """Whether a token granted it: then whatever it does not name is denied."""
    grants: Mapping[str, tuple[str, ...]]
    """Operation, spelled with `_`, to patterns of channels."""

    @classmethod
    def from_signin(cls, granted: Any) -> "Capabilities":
        """From `user_data.capabilities`, operation to patterns; `ValueError` if it is malformed."""
        grants: dict[str, tuple[str, ...]] = {}
        for name, patterns in _items(granted):
            operation = _operation(name)
            merged = (*grants.get(operation, ()), *_texts(patterns, operation))
            if len(merged) > MAX_PATTERNS:
                raise ValueError(f"more than {MAX_PATTERNS} patterns for {operation}")
            grants[operation] = merged
        return cls(is_token=False, grants=grants)

    @classmethod
    def from_token(cls, granted: Any) -> "Capabilities":
        """From a token's claim, pattern to operations; `ValueError` if it is malformed."""
        items = _items(granted)
        if len(items) > MAX_PATTERNS:
            raise ValueError(f"more than {MAX_PATTERNS} patterns")
        grants: dict[str, tuple[str, ...]] = {}
        for pattern, names in items:
            for operation in dict.fromkeys(map(_operation, _texts(names, "a pattern"))):
                grants[operation] = (*grants.get(operation, ()), pattern)
        return cls(is_token=True, grants=grants)

    def allows(self, operation: str, channel: str) -> bool:
        """Whether an operation of `OPERATIONS` is allowed on a channel."""
        patterns = self.grants.get(operation)
        if patterns is None:
            return not self.is_token and operation in _DEFAULTS
        return any(matches(pattern, channel) for pattern in patterns)


def _items(granted: Any) -> list[tuple[str, Any]]:
    if not isinstance(granted, dict):
        raise ValueError("capabilities must be an object")
    return list(granted.items())


def _texts(values: Any, owner: str) -> Iterable[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"the value of {owner} must be a list of strings")
    return values


def _operation(name: str) -> str:
    operation = name.replace("-", "_")
    if operation not in _KNOWN:
        raise ValueError("an unknown operation")
    return operation


class Actor(Struct, frozen=True):
    """The socket in whose name a message is mutated."""

    client_id: str | None
    capabilities: Capabilities | None


class Grant(Struct, frozen=True):
    """The mutation is allowed."""

    scope: Literal["any", "own"]


class Denied(Struct, frozen=True):
    """The mutation is not allowed; the text is sent to the client."""

    text: str


def grant(verb: MutationVerb, channel: str, actor: Actor, creator: str | None) -> Grant | Denied:
    """Whether a socket may mutate a message that `creator` created: points 4 and 5 of channels 7.3.

    A request without a socket is privileged and not asked here.
    """
    held = actor.capabilities
    refused = Denied(f"Connection is not allowed to {verb} message on channel '{channel}'")
    if held is None or (held.is_token and not held.allows("publish", channel)):
        return refused
    if held.allows(f"message_{verb}_any", channel):
        return Grant("any")
    if not held.allows(f"message_{verb}_own", channel):
        return refused
    if actor.client_id is None:
        return Denied(f"Connection must have an identified client to {verb} own messages")
    if creator is None:
        return Denied(
            f"Cannot authorize own-scoped {verb} because the original message creator is "
            "unidentified"
        )
    if hmac.compare_digest(actor.client_id.encode(), creator.encode()):
        return Grant("own")
    return Denied(
        f"Connection client '{actor.client_id}' is not allowed to {verb} message owned by "
        f"'{creator}'"
    )
