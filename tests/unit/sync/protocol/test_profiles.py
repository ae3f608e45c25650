"""The stateless gates: registries, numbers, tree payloads (sync 13.2) and events (sync 14)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.profiles import (
    CANONICAL,
    COMPATIBILITY,
    MAX_INTEGER,
    MAX_SEGMENTS,
    TREE_ACTIONS,
    Model,
    accepted_types,
    event_faults,
    number_faults,
    tree_faults,
)

TARGETS: dict[str, Any] = {
    "explorer": {"kind": "tree", "actions": list(TREE_ACTIONS)},
    "readonly": {"kind": "tree", "actions": ["treePush"]},
    "outline": {
        "kind": "tree",
        "actions": ["treePush"],
        "schema": {
            "treePush": {
                "properties": {
                    "value": {
                        "properties": {"name": {"type": "string"}, "size": {"type": "string"}},
                        "required": ["name"],
                    },
                    "options": {"required": ["parent"]},
                },
            }
        },
    },
    "settings": {"kind": "value", "actions": ["set", "unset"]},
    "settings.locked": {"kind": "value", "actions": ["unset"]},
    "settings.menu": {"kind": "tree", "actions": ["set", "treePush"]},
}
SCHEMAS: dict[str, Any] = {
    "note.created": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id", "title"],
        "additionalProperties": False,
    },
    "anything": True,
    "nothing": False,
    "named": {"propertyNames": {"maxLength": 3}},
    "open": {"unevaluatedProperties": False, "properties": {"a": True}},
    "twice": {"allOf": [{"required": ["a"]}, {"required": ["a"]}]},
    "list": {"prefixItems": [True], "items": False},
}
MODEL = Model.parse(TARGETS, SCHEMAS, 3)


def tree(action: str, **payload: Any) -> list[Fault]:
    """The faults of a tree action."""
    return tree_faults(MODEL, {"type": action, "payload": payload})


def fields(action: str, **payload: Any) -> list[str]:
    """The fields of the faults of a tree action, below `event.payload`."""
    return [field.removeprefix("event.payload.") for field, _ in tree(action, **payload)]


def event(**payload: Any) -> list[str]:
    """The fields of the faults of an event, below `event.payload`."""
    faults = event_faults(MODEL, {"type": "event", "payload": payload})
    assert faults == sorted(faults)
    return [fault.field.removeprefix("event.payload.") for fault in faults]


# Profiles.


def test_accepted_types() -> None:
    """Each profile accepts exactly its own types, in the announced order."""
    assert accepted_types(COMPATIBILITY) == TREE_ACTIONS
    assert accepted_types(CANONICAL) == ("event",)


# Registries.


def test_model_keeps_what_it_was_given() -> None:
    """Version and profiles are announced as configured."""
    model = Model.parse({}, {}, 7, [CANONICAL])
    assert (model.model_version, model.profiles) == (7, (CANONICAL,))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "tree_targets: must be a table"),
        ({5: {}}, "tree_targets: 5 is not a name"),
        ({"": {}}, "tree_targets: '' is not a name"),
        ({"a..b": {}}, "tree_targets.a..b: must be 1 to 64 non-empty segments"),
        ({"a": 5}, "tree_targets.a: must be a table"),
        ({"a": {"kind": "tree", "actions": [], "color": 1}}, "tree_targets.a.color: unknown"),
        ({"a": {"actions": []}}, "tree_targets.a.kind: must be tree or value, not None"),
        ({"a": {"kind": "forest", "actions": []}}, "tree_targets.a.kind: must be tree or value"),
        ({"a": {"kind": "tree"}}, "tree_targets.a.actions: must be a list of set, unset"),
        ({"a": {"kind": "tree", "actions": "set"}}, "tree_targets.a.actions: must be a list"),
        (
            {"a": {"kind": "tree", "actions": ["grow"]}},
            "tree_targets.a.actions: 'grow' is not an action of a tree; allowed: set, unset",
        ),
        (
            {"a": {"kind": "value", "actions": ["treePush"]}},
            "tree_targets.a.actions: 'treePush' is not an action of a value; allowed: set, unset",
        ),
        (
            {"a": {"kind": "tree", "actions": ["set"], "schema": []}},
            "tree_targets.a.schema: must be a table",
        ),
        (
            {"a": {"kind": "tree", "actions": ["set"], "schema": {"unset": True}}},
            "tree_targets.a.schema.unset: not one of the target's actions",
        ),
        (
            {"a": {"kind": "tree", "actions": ["set"], "schema": {"set": {"type": "strin"}}}},
            "tree_targets.a.schema.set: not a JSON Schema: ",
        ),
    ],
)
def test_malformed_targets(targets: Any, message: str) -> None:
    """A malformed registry of targets is refused with the key that is wrong."""
    with pytest.raises(ConfigError) as refused:
        Model.parse(targets, {}, 1)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        (None, "schemas: must be a table"),
        ({"": {}}, "schemas: '' is not a name"),
        ({"a": 5}, "schemas.a: not a JSON Schema: "),
        ({"a": None}, "schemas.a: not a JSON Schema: "),
        ({"a": {"required": "b"}}, "schemas.a: not a JSON Schema: "),
        ({"a": {"pattern": "("}}, "schemas.a: not a JSON Schema: "),
        ({"a": {"const": Path()}}, "schemas.a: not a JSON Schema: "),
        ({"a": {"$ref": "#/nowhere"}}, "schemas.a: not a JSON Schema: "),
        (
            {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            "schemas.a: $schema is not https://json-schema.org/draft/2020-12/schema",
        ),
        ({"a": {"$schema": []}}, "schemas.a: $schema is not https://json-schema.org/"),
    ],
)
def test_malformed_schemas(schemas: Any, message: str) -> None:
    """What is not a JSON Schema 2020-12 is refused with its key."""
    with pytest.raises(ConfigError) as refused:
        Model.parse({}, schemas, 1)
    assert str(refused.value).startswith(message)


def test_schemas_fetch_nothing() -> None:
    """A reference to another document is refused, not fetched."""
    with pytest.raises(ConfigError, match="Retrieval is disabled"):
        Model.parse({}, {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}, 1)


@pytest.mark.parametrize("version", ["3", 3.0, True, None])
def test_malformed_model_version(version: Any) -> None:
    """The model version is an integer and nothing that resembles one."""
    with pytest.raises(ConfigError, match="model_version"):
        Model.parse({}, {}, version)


@pytest.mark.parametrize("profiles", [[], ["loose"], [CANONICAL, CANONICAL]])
def test_malformed_profiles(profiles: Any) -> None:
    """At least one profile is offered, each is known, none twice."""
    with pytest.raises(ConfigError, match="profiles: must be compatibility, canonical"):
        Model.parse({}, {}, 1, profiles)


# 8.2, step 3.


@pytest.mark.parametrize("number", [MAX_INTEGER, -MAX_INTEGER, 0, True, 1e300, "9" * 30, None])
def test_numbers_that_pass(number: Any) -> None:
    """Integers within the safe range pass, and whatever is no integer literal."""
    assert number_faults({"type": "set", "payload": {"value": [number]}}) == []


@pytest.mark.parametrize("number", [MAX_INTEGER + 1, -MAX_INTEGER - 1, 10**400])
def test_numbers_that_do_not(number: int) -> None:
    """An integer that a double cannot keep is reported at its path, wherever it is."""
    payload = {"value": {"n": number, "l": [0, {"m": number}]}, "options": {"x": number}}
    faults = number_faults({"type": "set", "payload": payload, "more": number})
    assert [fault.field for fault in faults] == [
        "event.more",
        "event.payload.options.x",
        "event.payload.value.l.1.m",
        "event.payload.value.n",
    ]
    assert {fault.message for fault in faults} == {"beyond ±9007199254740991; send it as a string"}


def test_numbers_at_any_depth() -> None:
    """The search does not recurse: depth cannot exhaust the stack."""
    value: Any = 2**53
    for _ in range(20_000):
        value = [value]
    [fault] = number_faults({"type": "event", "payload": {"data": value}})
    assert fault.field == "event.payload.data" + ".0" * 20_000


# 13.2, gate 1.


def test_missing_target() -> None:
    """Every action names a target."""
    assert tree("unset") == [("event.payload.target", "is required")]


@pytest.mark.parametrize("target", [5, None, ["explorer"], {}])
def test_target_that_is_no_text(target: Any) -> None:
    """A target is a string."""
    assert tree("unset", target=target) == [("event.payload.target", "must be a string")]


@pytest.mark.parametrize("action", TREE_ACTIONS)
@pytest.mark.parametrize("target", ["attic", "", "explore", "explorer.", "Explorer", "settingsx"])
def test_unregistered_target(action: str, target: str) -> None:
    """An unregistered target is all that is said about an event."""
    assert tree(action, target=target, junk=1) == [("event.payload.target", "unknown target")]


@pytest.mark.parametrize("target", ["settings..x", ".settings", "settings.", "settings.x..y"])
def test_empty_segments(target: str) -> None:
    """A path has no empty segments (sync D50)."""
    assert fields("set", target=target, value=1) == ["target"]


def test_paths_below_values() -> None:
    """`set` and `unset` may point below a value target (sync D50)."""
    assert fields("set", target="settings", value=1) == []
    assert fields("set", target="settings.a.b.c", value=1) == []
    assert fields("unset", target="settings.a.b.c") == []


@pytest.mark.parametrize("action", ["set", "unset", "treePush"])
def test_no_paths_below_trees(action: str) -> None:
    """Nothing points below a tree target (sync D50)."""
    assert fields(action, target="explorer.items", value={"id": "a"}) == ["target"]


def test_tree_actions_take_no_paths() -> None:
    """A `tree*` target equals a registered name (sync D50)."""
    assert fields("treePush", target="settings.a", value={"id": "a"}) == ["target"]
    assert fields("treePush", target="settings.menu", value={"id": "a"}) == []


def test_longest_prefix_decides() -> None:
    """Of nested registrations the longest, counted in segments, is meant (sync D50)."""
    assert tree("set", target="settings.locked.x", value=1) == [
        ("event.type", "not an action of target settings.locked")
    ]
    assert fields("set", target="settings.lockedx", value=1) == []
    assert fields("set", target="settings.menu.x", value=1) == ["target"]
    assert fields("set", target="settings.menu", value=1) == []


def test_paths_are_bounded() -> None:
    """A path cannot make the state deeper than it can be written."""
    most = ".".join(["settings"] * MAX_SEGMENTS)
    assert fields("set", target=most, value=1) == []
    assert fields("set", target=most + ".x", value=1) == ["target"]


# 13.2, gate 2.


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("treeDelete", "readonly"),
        ("set", "readonly"),
        ("treePush", "settings"),
        ("event", "settings"),
    ],
)
def test_action_not_allowed(action: str, target: str) -> None:
    """An action the target does not list is all that is said about an event."""
    faults = tree(action, target=target, junk=1)
    assert faults == [("event.type", f"not an action of target {target}")]


# 13.2, gate 3: shapes.

WELL_FORMED: list[tuple[str, dict[str, Any]]] = [
    ("set", {"value": None}),
    ("set", {"value": [1], "options": {}}),
    ("set", {"value": {}, "options": {"replace": True}}),
    ("unset", {}),
    ("unset", {"options": {}}),
    ("treePush", {"value": {"id": "a", "any": [1]}}),
    ("treePush", {"value": {"id": "a"}, "options": {"parent": "b", "position": "first"}}),
    ("treePush", {"value": {"id": "a"}, "options": {"position": "last"}}),
    ("treePush", {"value": {"id": "a"}, "options": {"position": {"after": "b"}}}),
    ("treePush", {"value": {"id": "a"}, "options": {"position": {"before": "b"}}}),
    ("treeDelete", {"options": {"id": "a"}}),
    ("treeUpdate", {"value": {}, "options": {"id": "a"}}),
    ("treeUpdate", {"value": {"id": 5}, "options": {"id": "a", "replace": False}}),
    ("treeMove", {"options": {"id": "a"}}),
    ("treeMove", {"options": {"id": "a", "parent": "_root", "position": {"after": "b"}}}),
]


@pytest.mark.parametrize(("action", "payload"), WELL_FORMED)
def test_well_formed(action: str, payload: dict[str, Any]) -> None:
    """Every row of the table of shapes passes, with and without its defaults."""
    assert fields(action, target="explorer", **payload) == []


MALFORMED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("set", {}, ["value"]),
    ("set", {"value": 1, "options": {"replace": 1}}, ["options.replace"]),
    ("set", {"value": 1, "options": {"replace": None}}, ["options.replace"]),
    ("set", {"value": 1, "options": None}, ["options"]),
    ("set", {"value": 1, "options": {"id": "a"}}, ["options.id"]),
    ("unset", {"value": 1}, ["value"]),
    ("unset", {"options": {"replace": True}}, ["options.replace"]),
    ("unset", {"options": []}, ["options"]),
    ("treePush", {}, ["value"]),
    ("treePush", {"value": "a"}, ["value"]),
    ("treePush", {"value": {}}, ["value.id"]),
    ("treePush", {"value": {"id": ""}}, ["value.id"]),
    ("treePush", {"value": {"id": 5}}, ["value.id"]),
    ("treePush", {"value": {"id": "a"}, "options": {"parent": None}}, ["options.parent"]),
    ("treePush", {"value": {"id": "a"}, "options": {"position": "middle"}}, ["options.position"]),
    ("treePush", {"value": {"id": "a"}, "options": {"position": 0}}, ["options.position"]),
    ("treePush", {"value": {"id": "a"}, "options": {"position": {}}}, ["options.position"]),
    (
        "treePush",
        {"value": {"id": "a"}, "options": {"position": {"after": "b", "before": "c"}}},
        ["options.position"],
    ),
    (
        "treePush",
        {"value": {"id": "a"}, "options": {"position": {"under": "b"}}},
        ["options.position"],
    ),
    (
        "treePush",
        {"value": {"id": "a"}, "options": {"position": {"after": 5}}},
        ["options.position.after"],
    ),
    (
        "treePush",
        {"value": {"id": "a"}, "options": {"position": {"before": None}}},
        ["options.position.before"],
    ),
    ("treeDelete", {}, ["options"]),
    ("treeDelete", {"options": {}}, ["options.id"]),
    ("treeDelete", {"options": {"id": 5}}, ["options.id"]),
    ("treeDelete", {"options": {"id": "a"}, "value": {}}, ["value"]),
    ("treeUpdate", {}, ["options", "value"]),
    ("treeUpdate", {"value": [], "options": {"id": "a"}}, ["value"]),
    ("treeUpdate", {"value": {}, "options": {}}, ["options.id"]),
    ("treeUpdate", {"value": {}, "options": {"id": "a", "replace": "maybe"}}, ["options.replace"]),
    ("treeUpdate", {"value": {}, "options": {"id": "a", "parent": "b"}}, ["options.parent"]),
    ("treeMove", {}, ["options"]),
    ("treeMove", {"options": {}}, ["options.id"]),
    ("treeMove", {"options": {"id": "a"}, "value": {"id": "a"}}, ["value"]),
    ("treeMove", {"options": {"id": "a", "replace": True}}, ["options.replace"]),
    (
        "treePush",
        {"color": "red", "value": {}, "options": {"b": 1, "position": 1}},
        ["color", "options.b", "options.position", "value.id"],
    ),
]


@pytest.mark.parametrize(("action", "payload", "wrong"), MALFORMED)
def test_malformed(action: str, payload: dict[str, Any], wrong: list[str]) -> None:
    """Each member that is missing, unknown or of the wrong type is reported at its own path."""
    assert fields(action, target="explorer", **payload) == wrong


def test_unknown_member_of_the_event() -> None:
    """A member beside `type` and `payload` is stored and hashed, so it is judged too (sync D64)."""
    odd = {"type": "unset", "payload": {"target": "settings"}, "color": "red"}
    assert tree_faults(MODEL, odd) == [Fault("event.color", "is not allowed")]
    odd = {"type": "event", "payload": {"schema": "anything", "data": 1}, "color": "red"}
    assert event_faults(MODEL, odd) == [Fault("event.color", "is not allowed")]


# 13.2, gate 3: registered schemas.


def test_registered_schema() -> None:
    """The schema of the action judges the payload, and all its faults are reported."""
    value = {"id": "a", "size": 5}
    assert tree("treePush", target="outline", value=value, options={}) == [
        ("event.payload.options.parent", "is required"),
        ("event.payload.value.name", "is required"),
        ("event.payload.value.size", 'the value is not of type "string"'),
    ]


def test_shape_comes_before_the_schema() -> None:
    """A malformed payload is not shown to the schema."""
    assert fields("treePush", target="outline", value={"id": 5}) == ["value.id"]


def test_actions_without_a_schema() -> None:
    """A target's schema binds its own action only."""
    model = Model.parse(
        {"a": {"kind": "value", "actions": ["set", "unset"], "schema": {"set": False}}}, {}, 1
    )
    assert tree_faults(model, {"type": "unset", "payload": {"target": "a"}}) == []
    assert tree_faults(model, {"type": "set", "payload": {"target": "a", "value": 1}}) == [
        Fault("event.payload", "False schema does not allow the value")
    ]


# 14.


@pytest.mark.parametrize("schema", ["", None, 5, ["note.created"]])
def test_event_schema_is_text(schema: Any) -> None:
    """`schema` is a non-empty string."""
    assert event(schema=schema, data={}) == ["schema"]


def test_event_needs_schema_and_data() -> None:
    """Both members are required; any JSON value is data."""
    assert event() == ["data", "schema"]
    assert event(schema="anything") == ["data"]
    assert event(data={}) == ["schema"]
    assert event(schema="anything", data=None) == []


def test_event_meta() -> None:
    """`meta` may be absent and is an object otherwise."""
    assert event(schema="anything", data=1, meta={"by": "me"}) == []
    assert event(schema="anything", data=1, meta=5) == ["meta"]
    assert event(schema="anything", data=1, meta=None) == ["meta"]


def test_event_has_no_other_member() -> None:
    """Another member of the payload is reported at its own path."""
    assert event(schema="anything", data=1, more=1, target="x") == ["more", "target"]


def test_event_schema_is_registered() -> None:
    """An unknown schema is all that is said about an event."""
    faults = event_faults(MODEL, {"type": "event", "payload": {"schema": "note.lost", "data": {}}})
    assert faults == [Fault("event.payload.schema", "unknown schema")]


def test_all_errors_of_the_data() -> None:
    """Wrong, missing and unexpected members are all reported, each at its own path (sync D55)."""
    data = {"id": "", "tags": ["a", 5, None], "zone": 1, "area": 2}
    payload = {"schema": "note.created", "data": data}
    assert event_faults(MODEL, {"type": "event", "payload": payload}) == [
        Fault("event.payload.data.area", "is not allowed"),
        Fault("event.payload.data.id", "the value is shorter than 1 character"),
        Fault("event.payload.data.tags.1", 'the value is not of type "string"'),
        Fault("event.payload.data.tags.2", 'the value is not of type "string"'),
        Fault("event.payload.data.title", "is required"),
        Fault("event.payload.data.zone", "is not allowed"),
    ]


@pytest.mark.parametrize(
    ("schema", "data", "wrong"),
    [
        ("note.created", {"id": "n", "title": "T"}, []),
        ("note.created", "text", ["data"]),
        ("nothing", 1, ["data"]),
        ("named", {"long": 1, "abc": 2}, ["data.long"]),
        ("open", {"a": 1, "b": 2, "c": 3}, ["data.b", "data.c"]),
        ("twice", {}, ["data.a"]),
        ("list", [1, 2, 3], ["data.1", "data.2"]),
    ],
)
def test_path_of_a_schema_error(schema: str, data: Any, wrong: list[str]) -> None:
    """An error is reported once, at the member it is about."""
    assert event(schema=schema, data=data) == wrong


@given(st.text(min_size=20, max_size=40))
def test_messages_do_not_repeat_values(secret: str) -> None:
    """What a peer sent is not echoed into its errors."""
    payload = {"schema": "note.created", "data": {"id": "n", "title": [secret]}}
    [fault] = event_faults(MODEL, {"type": "event", "payload": payload})
    assert fault == ("event.payload.data.title", 'the value is not of type "string"')


# What comes beside the payload.


@pytest.mark.parametrize(
    ("judge", "whole"),
    [
        (tree_faults, {"type": "unset", "payload": {"target": "settings"}}),
        (event_faults, {"type": "event", "payload": {"schema": "anything", "data": 1}}),
    ],
)
def test_meta_beside_the_payload_is_carried(judge: Any, whole: dict[str, Any]) -> None:
    """An object in either profile, whatever is in it; nothing else may be there (sync D69)."""
    assert judge(MODEL, {**whole, "meta": {"anything": [1, {}]}}) == []
    wrongs: tuple[Any, ...] = (None, 1, [], "x")
    for wrong in wrongs:
        assert [fault.field for fault in judge(MODEL, {**whole, "meta": wrong})] == ["event.meta"]
    assert [fault.field for fault in judge(MODEL, {**whole, "more": {}})] == ["event.more"]
