"""Patterns, grants of sign-ins and tokens, and the table of who may mutate what."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.channels.protocol.capabilities import (
    MAX_PATTERNS,
    OPERATIONS,
    UNUSED_OPERATIONS,
    Actor,
    Capabilities,
    Denied,
    Grant,
    grant,
    keeps_history,
    matches,
)
from tidelog.channels.protocol.verbs import MUTATION_VERBS, MutationVerb
from tidelog.channels.settings import History

DEFAULTS = ("subscribe", "publish", "history", "presence")
MUTATIONS = sorted(OPERATIONS - set(DEFAULTS))
FLAGS = (True, False)


@pytest.mark.parametrize(
    ("pattern", "channel", "expected"),
    [
        ("*", "anything", True),
        ("lab", "lab", True),
        ("lab", "Lab", False),
        ("lab", "lab2", False),
        ("pre*", "pre", True),
        ("private-ai:*", "private-ai:user-42:x", True),
        ("private-ai:*", "private-a", False),
        ("*suf", "a:suf", True),
        ("*suf", "suffix", False),
        ("a*b", "a:b", True),
        ("a*b", "ab", True),
        ("a*b", "a:c", False),
        ("a*b", "c:b", False),
        ("a*b*", "a:b:c", False),
        ("*b*", "abc", False),
        ("**", "abc", False),
        ("a**b", "ab", False),
        ("", "abc", False),
    ],
)
def test_the_table_of_patterns(pattern: str, channel: str, expected: bool) -> None:
    """At most one star, anywhere; it crosses colons, and case counts (channels 7.2)."""
    assert matches(pattern, channel) is expected


@given(st.text("ab:-*", max_size=6), st.text("ab:-", max_size=6))
def test_a_pattern_without_a_star_is_a_name(pattern: str, channel: str) -> None:
    """Without a star only equality matches; with several nothing does."""
    if pattern.count("*") == 0:
        assert matches(pattern, channel) is (pattern == channel)
    if pattern.count("*") > 1:
        assert not matches(pattern, channel)


def test_which_channels_keep_a_history() -> None:
    """The setting's patterns decide, unless history is off altogether."""
    assert keeps_history(History(), "lab")
    assert keeps_history(History(channels=["x", "private-*"]), "private-a")
    assert not keeps_history(History(channels=["x", "private-*"]), "lab")
    assert not keeps_history(History(channels=[]), "lab")
    assert not keeps_history(History(enabled=False), "lab")


def test_what_a_signin_does_not_mention() -> None:
    """The four ordinary operations are allowed, mutations are not (channels 2.5)."""
    silent = Capabilities.from_signin({})
    assert all(silent.allows(operation, "lab") for operation in DEFAULTS)
    assert not any(silent.allows(operation, "lab") for operation in MUTATIONS)
    assert not silent.is_token


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_what_a_signin_mentions(operation: str) -> None:
    """A list restricts to its patterns, and an empty list denies."""
    held = Capabilities.from_signin({operation: ["a*", "lab"]})
    assert held.allows(operation, "abc")
    assert held.allows(operation, "lab")
    assert not held.allows(operation, "bc")
    assert not Capabilities.from_signin({operation: []}).allows(operation, "abc")


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_token_grants_what_it_says_and_nothing_else(operation: str) -> None:
    """Each pattern grants its own operations; everything else is denied."""
    held = Capabilities.from_token({"a*": [operation], "b": []})
    assert held.is_token
    assert held.allows(operation, "abc")
    assert not held.allows(operation, "b")
    assert not any(held.allows(other, "abc") for other in OPERATIONS - {operation})
    assert not any(Capabilities.from_token({}).allows(each, "abc") for each in OPERATIONS)


def test_both_spellings_of_an_operation() -> None:
    """A dash is as good as an underscore, and both together grant both."""
    held = Capabilities.from_signin({"message-append-own": ["a"], "message_append_own": ["b"]})
    assert held.allows("message_append_own", "a")
    assert held.allows("message_append_own", "b")
    assert Capabilities.from_token({"a": ["message-update-any"]}).allows("message_update_any", "a")


def test_operations_of_other_servers_are_known() -> None:
    """Names of the protocol without a meaning here are accepted."""
    names = [*UNUSED_OPERATIONS, *(name.replace("_", "-") for name in UNUSED_OPERATIONS)]
    Capabilities.from_token({"*": names})
    Capabilities.from_signin({name: ["*"] for name in names})


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        [],
        "all",
        5,
        True,
        {"subscribe": "*"},
        {"subscribe": None},
        {"subscribe": [5]},
        {"subscribe": [None]},
        {"subscribe": {"a": 1}},
        {"subscibe": ["*"]},
        {"": ["*"]},
        {"subscribe": ["a"] * (MAX_PATTERNS + 1)},
    ],
)
def test_malformed_grants_of_a_signin(malformed: Any) -> None:
    """Anything but operation to list of patterns is refused, a misspelt operation too."""
    with pytest.raises(ValueError):
        Capabilities.from_signin(malformed)


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        [],
        "all",
        {"*": "subscribe"},
        {"*": None},
        {"*": [None]},
        {"*": ["subscibe"]},
        {"*": [""]},
        {f"p{index}": ["publish"] for index in range(MAX_PATTERNS + 1)},
    ],
)
def test_malformed_grants_of_a_token(malformed: Any) -> None:
    """Anything but pattern to list of known operations is refused."""
    with pytest.raises(ValueError):
        Capabilities.from_token(malformed)


def test_as_many_patterns_as_allowed() -> None:
    """The limit itself is allowed."""
    Capabilities.from_signin({"subscribe": ["a"] * MAX_PATTERNS})
    Capabilities.from_token({f"p{index}": ["publish"] for index in range(MAX_PATTERNS)})


def expected(
    kind: str, has_any: bool, has_own: bool, actor: str | None, creator: str | None
) -> Any:
    """The table of channels 7.3, written once more."""
    if has_any:
        return Grant("any")
    if not has_own:
        return Denied(f"Connection is not allowed to {kind} message on channel 'private-ai:x'")
    if actor is None:
        return Denied(f"Connection must have an identified client to {kind} own messages")
    if creator is None:
        return Denied(
            f"Cannot authorize own-scoped {kind} because the original message creator is "
            "unidentified"
        )
    if actor == creator:
        return Grant("own")
    return Denied(
        f"Connection client '{actor}' is not allowed to {kind} message owned by '{creator}'"
    )


@pytest.mark.parametrize(
    ("kind", "has_any", "has_own", "actor", "creator", "is_token"),
    [*product(MUTATION_VERBS, FLAGS, FLAGS, [None, "A"], [None, "A", "B", "\u00e9"], FLAGS)],
)
def test_the_decision_table(
    kind: MutationVerb,
    has_any: bool,
    has_own: bool,
    actor: str | None,
    creator: str | None,
    is_token: bool,
) -> None:
    """Every row of channels 7.3, for sign-ins and for tokens that may publish."""
    names = [f"message_{kind}_any"] * has_any + [f"message_{kind}_own"] * has_own
    if is_token:
        held = Capabilities.from_token({"private-ai:*": [*names, "publish"]})
    else:
        held = Capabilities.from_signin({name: ["private-ai:*"] for name in names})
    found = grant(kind, "private-ai:x", Actor(actor, held), creator)
    assert found == expected(kind, has_any, has_own, actor, creator)


@pytest.mark.parametrize("kind", MUTATION_VERBS)
def test_each_kind_needs_its_own_capability(kind: MutationVerb) -> None:
    """The capabilities of the other kinds, on any or own messages, do not help."""
    others = [
        f"message_{other}_{scope}"
        for other in MUTATION_VERBS
        if other != kind
        for scope in ("any", "own")
    ]
    held = Capabilities.from_signin({name: ["*"] for name in others})
    assert isinstance(grant(kind, "c", Actor("A", held), "A"), Denied)


@pytest.mark.parametrize("kind", MUTATION_VERBS)
def test_without_capabilities_nothing_is_mutated(kind: MutationVerb) -> None:
    """A socket that nobody granted anything is refused with the first sentence of channels 7.3."""
    assert grant(kind, "private-ai:x", Actor("A", None), "A") == Denied(
        f"Connection is not allowed to {kind} message on channel 'private-ai:x'"
    )


@pytest.mark.parametrize("kind", MUTATION_VERBS)
def test_a_token_must_allow_to_publish(kind: MutationVerb) -> None:
    """A token without `publish` on the channel mutates nothing, whatever else it grants."""
    held = Capabilities.from_token(
        {"c": [f"message_{kind}_any", f"message_{kind}_own"], "d": ["publish"]}
    )
    assert grant(kind, "c", Actor("A", held), "A") == Denied(
        f"Connection is not allowed to {kind} message on channel 'c'"
    )
