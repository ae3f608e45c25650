"""Reading the settings: flags over `TIDELOG_*` variables over `tidelog.toml` over defaults.

Nothing here knows a setting by name. A key is the dotted path of a field (`limits.max_body_bytes`);
its variable is `TIDELOG_LIMITS_MAX_BODY_BYTES` and its flag `--limits-max-body-bytes`. Arrays of
tables and other lists can be set in the file only. Every refusal names the key, where the value
came from and what would be allowed, and never a secret; all that is wrong is said at once. An
unknown key or flag is refused; an unknown variable is only named, for an environment is shared with
programs that we do not know.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import fields

from tidelog.base.errors import ConfigError
from tidelog.base.settings.kinds import mask_of, masked

FILE_NAME = "tidelog.toml"
"""Read from the working directory when no file is named."""

_PREFIX = "TIDELOG_"

NEAR = 0.7
"""How much alike two names are, of 1, that one could be a slip of the other."""

_ALL_NAMES = "`tidelog config check` lists all settings"
_NOT_SETTINGS = ("TIDELOG_TEST_", "TIDELOG_DAEMON_", "TIDELOG_INVITE", "TIDELOG_POSTGRES_PASSWORD")
"""Beginnings of the variables that steer tests (`tidelog.base.faultpoint`), of those that are the
mesh daemon's (`tidelog.daemon.settings`), the invite that commands read, and the password of
`compose.yaml`: an environment may hold them all."""

_KUBERNETES_NAME = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
"""What Kubernetes tells every container of a service: a service named `tidelog` makes
`TIDELOG_SERVICE_HOST` and `TIDELOG_PORT=tcp://10.0.0.1:80`, which nobody set."""

_EXCERPT_LENGTH = 40
"""Longest piece of a refused value that a message repeats."""

S = TypeVar("S", bound=Struct)


class Loaded(Struct, Generic[S], frozen=True):
    """Settings and where each of them came from."""

    settings: S
    origins: dict[str, str]
    """Dotted key to `flag --port`, `environment TIDELOG_PORT`, the path of the file, or `default`.
    An item of an array of tables has its own keys: `apps[0].id`."""
    warnings: tuple[str, ...] = ()
    """What was given and not used, one line each; whoever loads settings shows them."""


class Shown(NamedTuple):
    """One setting as `tidelog config check` shows it."""

    key: str
    value: object
    """The value, masked where the field is declared secret."""
    origin: str


class _Given(NamedTuple):
    """A value somebody gave, not yet checked."""

    value: object
    origin: str
    is_text: bool
    """Whether a number or a boolean may be spelled as text, as in a variable."""


def load_as(
    schema: type[S],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
    *,
    prefix: str = _PREFIX,
    default_file: Path = Path(FILE_NAME),
) -> Loaded[S]:
    """Settings of the shape of `schema`; its sections are Structs whose fields have defaults.

    Args:
        schema: a Struct.
        flags: command-line flags by dotted key; a flag that was not given is absent or `None`.
        environ: all environment variables; those that do not start with `prefix` are ignored.
        file: an explicit file, which must exist, or `None` for `default_file` if it exists.
        prefix: what the names of its variables begin with.
        default_file: what is read if `file` is `None`.
    """
    given: dict[str, Any] = {}
    problems: list[str] = []
    if file is not None or default_file.exists():
        path = file or default_file
        given = _Reading(_known(schema), str(path), problems).tagged(schema, parsed(path), "")
    leaves = dict(_leaves(schema))
    warnings: list[str] = []
    for key, value in _from_environment(environ, leaves, prefix, warnings, problems):
        _place(given, key, value)
    for key, value in _from_flags(flags, leaves, problems):
        _place(given, key, value)
    origins: dict[str, str] = {}
    settings = _built(schema, given, "", origins, problems)
    if settings is None or problems:
        raise ConfigError(_said_at_once(problems))
    return Loaded(settings, origins, tuple(warnings))


def _said_at_once(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings are wrong:" + "".join(f"\n  {each}" for each in problems)


def describe(loaded: Loaded[Any]) -> list[Shown]:
    """Every setting in the order of the schema, with its origin and its secrets masked."""
    return list(_shown(loaded.settings, "", loaded.origins))


# The schema.


@cache
def _info(kind: Any) -> inspect.Type:
    """What msgspec knows of a type: asked several times for each setting of a start."""
    info = inspect.type_info(kind)
    return info.type if isinstance(info, inspect.Metadata) else info


def _section(kind: Any) -> type[Struct] | None:
    info = _info(kind)
    return info.cls if isinstance(info, inspect.StructType) else None


def _table(kind: Any) -> type[Struct] | None:
    """The Struct of an array of tables."""
    info = _info(kind)
    if isinstance(info, inspect.ListType) and isinstance(info.item_type, inspect.StructType):
        return info.item_type.cls
    return None


def _leaves(schema: type[Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and type of everything that holds a value; an array of tables is one leaf."""
    for field in fields(schema):
        section = _section(field.type)
        if section:
            yield from _leaves(section, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def _known(schema: type[Struct], prefix: str = "") -> list[str]:
    """Every key that may stand in a file, sections and the insides of arrays included."""
    keys = []
    for field in fields(schema):
        keys.append(prefix + field.name)
        inner = _section(field.type) or _table(field.type)
        if inner:
            keys += _known(inner, f"{prefix}{field.name}.")
    return keys


# What was given, not yet checked: a `_Given` per leaf, a dict per section; an array is a `_Given`
# whose value is a list of dicts, each with its key.


def parsed(path: Path) -> dict[str, Any]:
    """What a TOML file says, unchecked; `ConfigError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


class _Reading(NamedTuple):
    """A file on its way to what was given; what is wrong with it is left out and noted."""

    known: list[str]
    origin: str
    problems: list[str]

    def tagged(self, schema: type[Struct], table: object, prefix: str) -> dict[str, Any]:
        """Its tables with an origin beside each value."""
        if not isinstance(table, dict):
            self.problems.append(f"{prefix[:-1]} ({self.origin}): must be a table")
            return {}
        kinds = {field.name: field.type for field in fields(schema)}
        given: dict[str, Any] = {}
        for name, value in table.items():
            key = prefix + name
            if name not in kinds:
                plain = re.sub(r"\[\d+\]", "", key)
                self.problems.append(_unknown("key", key, plain, self.known, self.origin))
            elif section := _section(kinds[name]):
                given[name] = self.tagged(section, value, f"{key}.")
            elif item := _table(kinds[name]):
                if isinstance(value, list):
                    items = list(self._items(item, value, key))
                    given[name] = _Given(items, self.origin, is_text=False)
                else:
                    self.problems.append(
                        f"{key} ({self.origin}): must be an array of tables, [[{key}]]"
                    )
            else:
                given[name] = _Given(value, self.origin, is_text=False)
        return given

    def _items(
        self, schema: type[Struct], tables: list[object], key: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, table in enumerate(tables):
            prefix = f"{key}[{index}]."
            given = self.tagged(schema, table, prefix)
            if isinstance(table, dict):
                yield prefix, given


def _from_environment(
    environ: Mapping[str, str],
    leaves: Mapping[str, Any],
    prefix: str,
    warnings: list[str],
    problems: list[str],
) -> Iterator[tuple[str, _Given]]:
    keys = {prefix + key.replace(".", "_").upper(): key for key in leaves}
    others = tuple(other for other in _NOT_SETTINGS if other != prefix)
    for name, value in environ.items():
        if not name.startswith(prefix) or name.startswith(others) or _is_kubernetes(name, value):
            continue
        if name not in keys:
            unknown = _unknown("variable", name, name, keys, "environment", prefix)
            warnings.append(f"ignored: {unknown}")
            continue
        origin = f"environment {name}"
        if _is_list(leaves[keys[name]]):
            problems.append(_several(keys[name], origin))
        else:
            yield keys[name], _Given(value, origin, is_text=True)


def _is_kubernetes(name: str, value: str) -> bool:
    return _KUBERNETES_NAME.fullmatch(name) is not None or (
        name.endswith("_PORT") and _KUBERNETES_ADDRESS.fullmatch(value) is not None
    )


def _from_flags(
    flags: Mapping[str, object], leaves: Mapping[str, Any], problems: list[str]
) -> Iterator[tuple[str, _Given]]:
    for key, value in flags.items():
        if value is None:
            continue
        flag = _flag(key)
        if key not in leaves:
            problems.append(_unknown("flag", flag, flag, map(_flag, leaves), "command line", "--"))
        elif _is_list(leaves[key]):
            problems.append(_several(key, f"flag {flag}"))
        else:
            plain = str(value) if isinstance(value, Path) else value
            yield key, _Given(plain, f"flag {flag}", is_text=isinstance(plain, str))


def _flag(key: str) -> str:
    return "--" + key.replace(".", "-").replace("_", "-")


def _is_list(kind: Any) -> bool:
    return isinstance(_info(kind), (inspect.ListType, inspect.DictType))


def _several(key: str, origin: str) -> str:
    return f"{key} ({origin}): has several values; set it in {FILE_NAME}"


def _place(given: dict[str, Any], key: str, value: _Given) -> None:
    *sections, name = key.split(".")
    for section in sections:
        given = given.setdefault(section, {})
    given[name] = value


def _unknown(
    what: str, shown: str, name: str, known: Iterable[str], origin: str, prefix: str = ""
) -> str:
    """Say that a name is not known, and which one was perhaps meant; all begin with `prefix`."""
    bare, name = [each.removeprefix(prefix) for each in known], name.removeprefix(prefix)
    own = name.rpartition(".")[2]
    elsewhere = [each for each in bare if each.rpartition(".")[2] == own]  # in another section
    cutoff = 0.0 if elsewhere else NEAR
    near = difflib.get_close_matches(name, elsewhere or bare, n=1, cutoff=cutoff)
    hint = f"the nearest known one is {prefix}{near[0]}" if near else _ALL_NAMES
    return f"unknown {what} {shown} ({origin}); {hint}"


# From what was given to settings, and from settings to what is shown.


def _built(
    schema: type[S],
    given: dict[str, Any],
    prefix: str,
    origins: dict[str, str],
    problems: list[str],
) -> S | None:
    """The settings, or `None` if a value of their own is wrong.

    A section that is wrong is left at its defaults, so that the rest is still looked at.
    """
    values: dict[str, Any] = {}
    noted = len(problems)
    of_sections = 0
    for field in fields(schema):
        key = prefix + field.name
        found = given.get(field.name)
        if section := _section(field.type):
            before = len(problems)
            built = _built(section, found or {}, f"{key}.", origins, problems)
            of_sections += len(problems) - before
            if built is not None:
                values[field.name] = built
        elif found is not None:
            origins[key] = found.origin
            if item := _table(field.type):
                values[field.name] = [
                    _built(item, inner, name, origins, problems) for name, inner in found.value
                ]
            else:
                values[field.name] = _checked(key, field.type, found, problems)
        elif field.required:
            problems.append(f"{key}: missing; must be {_allowed(field.type)}")
        else:
            origins[key] = "default"
    if len(problems) - noted > of_sections:
        return None
    try:
        return schema(**values)
    except ConfigError as error:
        problems.extend(str(error).splitlines())  # a section may find several
        return None


def _checked(key: str, kind: Any, given: _Given, problems: list[str]) -> Any:
    try:
        return msgspec.convert(given.value, kind, strict=not given.is_text)
    except msgspec.ValidationError:
        value = "the value" if mask_of(kind) else repr(given.value)[:_EXCERPT_LENGTH]
        problems.append(f"{key} ({given.origin}): {value} is not allowed; must be {_allowed(kind)}")
        return None


def _allowed(kind: Any) -> str:
    return _allowed_of(_info(kind))


def _allowed_of(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(ge=ge, le=le) | inspect.FloatType(ge=ge, le=le) as number:
            noun = "an integer" if isinstance(number, inspect.IntType) else "a number"
            least = "" if ge is None else f" from {ge}"
            if number.gt is not None:
                least = f" above {number.gt}"
            return noun + least + ("" if le is None else f" to {le}")
        case inspect.StrType(pattern=str(pattern)):
            return f"text of the form {pattern}"
        case inspect.StrType(min_length=min_length):
            return "text that is not empty" if min_length else "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.ListType(item_type=item):
            return f"a list of {_allowed_of(item)}"
        case inspect.UnionType(types=types):
            chosen = [one for one in types if not isinstance(one, inspect.NoneType)]
            chosen.sort(key=lambda one: isinstance(one, inspect.ListType))
            return " or ".join(map(_allowed_of, chosen))
        case other:
            return "a " + type(other).__name__.removesuffix("Type").lower()


def _shown(settings: Struct, prefix: str, origins: Mapping[str, str]) -> Iterator[Shown]:
    for field in fields(settings):
        key = prefix + field.name
        value = getattr(settings, field.name)
        if _section(field.type):
            yield from _shown(value, f"{key}.", origins)
        elif _table(field.type) and value:
            for index, item in enumerate(value):
                yield from _shown(item, f"{key}[{index}].", origins)
        else:
            yield Shown(key, masked(field.type, value), origins[key])
