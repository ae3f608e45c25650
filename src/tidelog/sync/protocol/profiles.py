"""What an event may be, whatever the state: the two profiles and their registries.

`compatibility` is the tree profile (sync 13), `canonical` the event profile (sync 14). Everything
here looks at one event and the configuration only, so server and client give the same answer and
the server can give it before the event waits for its turn. What depends on the state is in
`tidelog.sync.protocol.tree`.

Every event here has a text `type` and an object `payload`: the checks of the request have seen to
that (sync 8.1).
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from jsonschema_rs import Draft202012Validator, ValidationErrorKind
from msgspec import Struct

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.fault import Fault

COMPATIBILITY = "compatibility"
CANONICAL = "canonical"
TREE_ACTIONS = ("set", "unset", "treePush", "treeDelete", "treeUpdate", "treeMove")
EVENT = "event"
"""The only event type of the event profile."""

TREE = "tree"
VALUE = "value"
ROOT = "_root"
"""What `options.parent` calls the top of a tree; no node can have this id."""

MAX_SEGMENTS = 64
"""Segments of a target. Each may become an object inside an object, and whatever writes, copies or
reads a state may recurse: one target of a megabyte of dots would make it unreadable."""

MAX_INTEGER = 2**53 - 1
"""The integers that every JSON implementation keeps exact, and that have a canonical form."""

_ACCEPTED = {COMPATIBILITY: TREE_ACTIONS, CANONICAL: (EVENT,)}
_PATH_ACTIONS = ("set", "unset")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REQUIRED = "is required"
_NOT_ALLOWED = "is not allowed"


def accepted_types(profile: str) -> tuple[str, ...]:
    """The event types a connection of that profile may submit, in the order they are announced."""
    return _ACCEPTED[profile]


class Target(Struct, frozen=True):
    """A registered part of the state of every partition."""

    name: str
    kind: str
    """`TREE` or `VALUE`."""
    actions: frozenset[str]
    schemas: Mapping[str, Draft202012Validator]
    """By action, for `event.payload`; an action without one needs only the common shape."""


class Address(NamedTuple):
    """Where an event's `target` points."""

    target: Target
    path: tuple[str, ...]
    """Segments below the registered name; always empty for a tree."""


def _digest(*parts: Any) -> bytes:
    return sha256(json.dumps(parts, default=repr).encode()).digest()


class Model(Struct, frozen=True):
    """The registries of a deployment, ready to judge events."""

    targets: Mapping[str, Target]
    schemas: Mapping[str, Draft202012Validator]
    """By schema id, for `event.payload.data`."""
    model_version: int
    profiles: tuple[str, ...]
    """What a connection can be given, in the configured order."""
    digest: bytes = b""
    """Over all of it but the version: models that judge alike have the same."""

    @classmethod
    def parse(
        cls,
        tree_targets: Mapping[str, Any],
        schemas: Mapping[str, Any],
        model_version: int,
        profiles: Sequence[str] = (COMPATIBILITY, CANONICAL),
    ) -> "Model":
        """Read the registries as they are configured; `ConfigError` names the wrong key."""
        if isinstance(model_version, bool) or not isinstance(model_version, int):
            raise ConfigError("model_version: must be an integer")
        if (
            not profiles
            or len(set(profiles)) != len(profiles)
            or not _ACCEPTED.keys() >= {*profiles}
        ):
            raise ConfigError(f"profiles: must be {_listed(_ACCEPTED)}, at least one, each once")
        return cls(
            {
                name: _target(name, entry)
                for name, entry in _table("tree_targets", tree_targets).items()
            },
            {
                name: _validator(f"schemas.{name}", schema)
                for name, schema in _table("schemas", schemas).items()
            },
            model_version,
            tuple(profiles),
            _digest(tree_targets, schemas, list(profiles)),
        )

    def find(self, action: str, target: str) -> Address | None:
        """Where an action on `target` points, or `None` if nothing is registered there (sync D50).

        Only `set` and `unset` may point below a registered name, and only below that of a value.
        """
        if action not in _PATH_ACTIONS:
            exact = self.targets.get(target)
            return None if exact is None else Address(exact, ())
        segments = target.split(".")
        if len(segments) > MAX_SEGMENTS or "" in segments:
            return None
        for end in range(len(segments), 0, -1):
            found = self.targets.get(".".join(segments[:end]))
            if found is not None:
                path = tuple(segments[end:])
                return None if path and found.kind == TREE else Address(found, path)
        return None


def number_faults(event: Mapping[str, Any]) -> list[Fault]:
    """Integers in `event` that other JSON implementations would round (8.2, step 3)."""
    faults = []
    pending: list[tuple[Any, Any]] = [(event, ("event",))]
    for container, path in pending:
        children = container.items() if isinstance(container, dict) else enumerate(container)
        for key, child in children:
            if isinstance(child, (dict, list)):
                pending.append((child, (path, key)))
            elif type(child) is int and not -MAX_INTEGER <= child <= MAX_INTEGER:
                message = f"beyond ±{MAX_INTEGER}; send it as a string"
                faults.append(Fault(_dotted((path, key)), message))
    return sorted(faults)


def tree_faults(model: Model, event: Mapping[str, Any]) -> list[Fault]:
    """Gates 1 to 3 of the tree profile (sync 13.2); the first that fails decides."""
    action, payload = event["type"], event["payload"]
    if "target" not in payload:
        return [Fault("event.payload.target", _REQUIRED)]
    target = payload["target"]
    if not isinstance(target, str):
        return [Fault("event.payload.target", "must be a string")]
    address = model.find(action, target)
    if address is None:
        return [Fault("event.payload.target", "unknown target")]
    if action not in address.target.actions:
        return [Fault("event.type", f"not an action of target {address.target.name}")]
    faults = sorted(_shape_faults(event, _SHAPES[action]))
    schema = address.target.schemas.get(action)
    if faults or schema is None:
        return faults
    return _schema_faults(schema, "event.payload", payload)


def event_faults(model: Model, event: Mapping[str, Any]) -> list[Fault]:
    """The checks of the event profile (sync 14): shape, then registration, then the data itself."""
    payload = event["payload"]
    name = payload.get("schema")
    if len(event) == 2 and len(payload) == 2 and "data" in payload and type(name) is str:
        schema = model.schemas.get(name)
        if schema is not None and schema.is_valid(payload["data"]):
            return []  # as most are: no member but the required ones
    faults = [
        *_envelope_faults(event),
        *_unknown_members("event.payload", payload, ("schema", "data", "meta")),
    ]
    if not isinstance(name, str) or not name:
        faults.append(Fault("event.payload.schema", "must be a non-empty string"))
    if "data" not in payload:
        faults.append(Fault("event.payload.data", _REQUIRED))
    if "meta" in payload:
        faults += _object("event.payload.meta", payload["meta"])
    if faults:
        return sorted(faults)
    if name not in model.schemas:
        return [Fault("event.payload.schema", "unknown schema")]
    return _schema_faults(model.schemas[name], "event.payload.data", payload["data"])


# The shape of a tree action's payload: one checker for each member that has a type.

_Check = Callable[[str, Any], Iterable[Fault]]


def _anything(_field: str, _value: object) -> Iterator[Fault]:
    yield from ()


def _boolean(field: str, value: object) -> Iterator[Fault]:
    if not isinstance(value, bool):
        yield Fault(field, "must be true or false")


def _text(field: str, value: object) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield Fault(field, "must be a string")


def _object(field: str, value: object) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(field, "must be an object")


def _item(field: str, value: object) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(field, "must be an object")
    elif "id" not in value:
        yield Fault(f"{field}.id", _REQUIRED)
    elif not isinstance(value["id"], str) or not value["id"]:
        yield Fault(f"{field}.id", "must be a non-empty string")


def _position(field: str, value: object) -> Iterator[Fault]:
    if isinstance(value, dict) and len(value) == 1 and value.keys() <= {"after", "before"}:
        [(side, sibling)] = value.items()
        yield from _text(f"{field}.{side}", sibling)
    elif value not in ("first", "last"):
        yield Fault(field, 'must be "first", "last", {"after": id} or {"before": id}')


class _Shape(NamedTuple):
    """The payload of one action (table in sync 13.2)."""

    value: _Check | None
    """How to judge the required `value`; `None` where it is forbidden."""
    options: Mapping[str, _Check]
    """Known options; `id` is required wherever it is known."""


_SHAPES = {
    "set": _Shape(_anything, {"replace": _boolean}),
    "unset": _Shape(None, {}),
    "treePush": _Shape(_item, {"parent": _text, "position": _position}),
    "treeDelete": _Shape(None, {"id": _text}),
    "treeUpdate": _Shape(_object, {"id": _text, "replace": _boolean}),
    "treeMove": _Shape(None, {"id": _text, "parent": _text, "position": _position}),
}


def _shape_faults(event: Mapping[str, Any], shape: _Shape) -> Iterator[Fault]:
    payload = event["payload"]
    known = ("target", "options") if shape.value is None else ("target", "options", "value")
    yield from _envelope_faults(event)
    yield from _unknown_members("event.payload", payload, known)
    if shape.value is not None:
        if "value" in payload:
            yield from shape.value("event.payload.value", payload["value"])
        else:
            yield Fault("event.payload.value", _REQUIRED)
    if "options" in payload:
        yield from _option_faults(payload["options"], shape.options)
    elif "id" in shape.options:
        yield Fault("event.payload.options", _REQUIRED)


def _option_faults(options: object, known: Mapping[str, _Check]) -> Iterator[Fault]:
    field = "event.payload.options"
    if not isinstance(options, dict):
        yield Fault(field, "must be an object")
        return
    yield from _unknown_members(field, options, known)
    for name, check in known.items():
        if name in options:
            yield from check(f"{field}.{name}", options[name])
        elif name == "id":
            yield Fault(f"{field}.id", _REQUIRED)


def _envelope_faults(event: Mapping[str, Any]) -> list[Fault]:
    """What is wrong beside `type` and `payload`; `meta` is carried and never looked into."""
    faults = _unknown_members("event", event, ("type", "payload", "meta"))
    return [*faults, *(_object("event.meta", event["meta"]) if "meta" in event else ())]


def _unknown_members(field: str, members: Mapping[str, Any], known: Collection[str]) -> list[Fault]:
    return [Fault(f"{field}.{name}", _NOT_ALLOWED) for name in members if name not in known]


def _schema_faults(schema: Draft202012Validator, field: str, value: Any) -> list[Fault]:
    """All violations, each at the path of the wrong, missing or forbidden member (sync D55).

    Several branches of a schema may find the same fault; it is reported once.
    """
    if schema.is_valid(value):
        return []
    faults = set()
    for error in schema.iter_errors(value):
        path = ".".join([field, *map(str, error.instance_path)])
        match error.kind:
            case ValidationErrorKind.Required(name):
                faults.add(Fault(f"{path}.{name}", _REQUIRED))
            case ValidationErrorKind.AdditionalProperties(
                names
            ) | ValidationErrorKind.UnevaluatedProperties(names):
                faults.update(Fault(f"{path}.{name}", _NOT_ALLOWED) for name in names)
            case ValidationErrorKind.PropertyNames(cause):
                faults.add(Fault(f"{path}.{cause.instance}", f"as a name: {cause.message}"))
            case _:
                faults.add(Fault(path, error.message))
    return sorted(faults)


def _dotted(path: Any) -> str:
    """The dot path that was noted as `((("event",), key), key)`."""
    segments = []
    while len(path) == 2:
        path, key = path
        segments.append(str(key))
    return ".".join([*path, *reversed(segments)])


# Reading the registries.


def _table(key: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{key}: must be a table")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{key}: {name!r} is not a name; must be non-empty text")
    return given


def _target(name: str, given: Any) -> Target:
    key = f"tree_targets.{name}"
    segments = name.split(".")
    if "" in segments or len(segments) > MAX_SEGMENTS:
        raise ConfigError(f"{key}: must be 1 to {MAX_SEGMENTS} non-empty segments")
    entry = _table(key, given)
    for member in entry:
        if member not in ("kind", "actions", "schema"):
            raise ConfigError(f"{key}.{member}: unknown; allowed are kind, actions and schema")
    kind = entry.get("kind")
    if kind not in (TREE, VALUE):
        raise ConfigError(f"{key}.kind: must be {TREE} or {VALUE}, not {kind!r}")
    possible = TREE_ACTIONS if kind == TREE else _PATH_ACTIONS
    actions = entry.get("actions")
    if not isinstance(actions, (list, tuple)):
        raise ConfigError(f"{key}.actions: must be a list of {_listed(possible)}")
    for action in actions:
        if action not in possible:
            raise ConfigError(
                f"{key}.actions: {action!r} is not an action of a {kind}; allowed: "
                f"{_listed(possible)}"
            )
    schemas = _table(f"{key}.schema", entry.get("schema", {}))
    for action in schemas:
        if action not in actions:
            raise ConfigError(f"{key}.schema.{action}: not one of the target's actions")
    return Target(
        name,
        kind,
        frozenset(actions),
        {action: _validator(f"{key}.schema.{action}", schemas[action]) for action in schemas},
    )


def _validator(key: str, schema: Any) -> Draft202012Validator:
    """Compile a schema that refers to nothing outside of it and the standard's own documents.

    Its messages do not repeat the refused value: it may be large, and it is not ours to log.
    """
    if isinstance(schema, dict) and schema.get("$schema", _DIALECT) not in (
        _DIALECT,
        f"{_DIALECT}#",
    ):
        raise ConfigError(f"{key}: $schema is not {_DIALECT}, the only dialect supported")
    try:
        return Draft202012Validator(schema, offline=True, mask="the value")
    except ValueError as error:
        message = getattr(error, "message", str(error))
        raise ConfigError(f"{key}: not a JSON Schema: {message}") from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
