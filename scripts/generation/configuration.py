"""Every setting with its default, its variable and its meaning, from the classes that declare them.

The meaning is the text under the field in the source, so whoever adds a setting documents it there.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec import inspect as kinds
from msgspec.structs import FieldInfo, fields
from scripts.generation.markdown import NOTE, code, joined, table

from tidelog.base.settings.kinds import mask_of
from tidelog.config.settings import Settings
from tidelog.daemon.settings import PREFIX as DAEMON_PREFIX
from tidelog.daemon.settings import DaemonSettings

INTRODUCTION = """\
A setting comes from a flag of the command, else from its environment variable, else from
`tidelog.toml`, else it has its default. `tidelog config check` shows each value and where it came
from; secrets are masked. An unknown key, a value out of its range and values that do not fit
together are refused with the name of the key. How to set things:
[configuration](../operations/configuration.md). Lists and arrays of tables can be set in the file
only."""

DAEMON = """\
A mesh daemon reads `daemon.toml` in its data directory, and `TIDELOG_DAEMON_*` variables over
it."""

_UNBOUNDED = 86_400_000
"""Bounds from here on only catch mistakes: a day in milliseconds, counts of two billion."""


def page() -> str:
    """The page of all settings."""
    parts = [NOTE, "# Settings", INTRODUCTION, "## The server: `tidelog.toml`"]
    parts += _sections(Settings, "", "TIDELOG_")
    parts += ["## A mesh daemon: `daemon.toml`", DAEMON]
    parts += _sections(DaemonSettings, "", DAEMON_PREFIX)
    return joined(parts)


def _sections(schema: type[Struct], prefix: str, variables: str) -> Iterator[str]:
    """The table of one section, then those of the sections in it."""
    told = _meanings(schema)
    rows = []
    inner = []
    for field in fields(schema):
        key = prefix + field.name
        section, is_array = _inside(field.type)
        if section is None:
            is_listed = isinstance(_info(field.type), (kinds.ListType, kinds.DictType))
            in_array = prefix.endswith("].")
            variable = "" if is_listed or in_array else variables + _variable(key)
            shown = code(_default(field))
            meaning = " ".join([*told[field.name].split(), *_range(field.type)])
            rows.append((code(field.name), shown, code(variable), meaning))
        else:
            inner.append((key + ("[]" if is_array else ""), section, is_array))
    if prefix:
        title = prefix[:-1]
        name = f"[[{title[:-2]}]]" if title.endswith("[]") else f"[{title}]"
        yield f"### {code(name)}"
        yield _about(schema)
    if rows:
        yield table(("key", "default", "variable", "meaning"), rows)
    for key, section, _ in inner:
        yield from _sections(section, f"{key}.", variables)


def _inside(kind: Any) -> tuple[type[Struct] | None, bool]:
    """The Struct of a section or of an array of tables, and whether it is the latter."""
    info = _info(kind)
    if isinstance(info, kinds.StructType):
        return info.cls, False
    if isinstance(info, kinds.ListType) and isinstance(info.item_type, kinds.StructType):
        return info.item_type.cls, True
    return None, False


def _info(kind: Any) -> kinds.Type:
    info = kinds.type_info(kind)
    return info.type if isinstance(info, kinds.Metadata) else info


def _variable(key: str) -> str:
    return key.replace(".", "_").upper()


def _default(field: FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        value = field.default_factory()
    elif field.default is not NODEFAULT:
        value = field.default
    else:
        return "required"
    if value is None:
        return "none"
    if mask_of(field.type) and not value:
        return "not set"
    return json.dumps(value)


def _meanings(schema: type[Struct]) -> dict[str, str]:
    """The text under each field in the source of its class."""
    [parsed] = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(parsed, ast.ClassDef)
    told: dict[str, str] = {}
    name = ""
    for statement in parsed.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            told[name] = ""
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            told[name] = str(statement.value.value)
            name = ""
        else:
            name = ""
    missing = [field.name for field in fields(schema) if _is_untold(field, told)]
    assert not missing, f"say what these mean in {Path(inspect.getfile(schema)).name}: {missing}"
    return told


def _is_untold(field: FieldInfo, told: dict[str, str]) -> bool:
    return _inside(field.type)[0] is None and not told.get(field.name)


def _about(schema: type[Struct]) -> str:
    """The docstring of a section, without the section's name at its begin."""
    text = " ".join((schema.__doc__ or "").split())
    said = text.partition(": ")[2] if text.startswith("`[") else text
    return said[:1].upper() + said[1:]


def _range(kind: Any) -> list[str]:
    """What is allowed, where that says more than that it is a number or a text."""
    match _info(kind):
        case kinds.IntType(ge=int(least), le=int(most)) if most < _UNBOUNDED:
            return [f"({least} to {most})"]
        case kinds.LiteralType(values=values):
            return ["(" + " or ".join(map(str, values)) + ")"]
    return []
