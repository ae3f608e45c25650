"""Settings as the file that a process reads them from."""

import json
from typing import Any

import msgspec

from tidelog.config.settings import Settings


def text_of(settings: Settings) -> str:
    """The text of a configuration file that has all of these settings but those of its process."""
    given = msgspec.to_builtins(settings)
    for name in ("data_dir", "store", "host", "port", "workers"):
        del given[name]
    return _table("", given)


def _table(path: str, table: dict[str, Any]) -> str:
    """What is in a table itself, then the tables in it."""
    lines, tables = [], []
    for name, value in table.items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            tables.append(f"[{inner}]\n{_table(inner, value)}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"[[{inner}]]\n{_table(inner, each)}" for each in value]
        elif value is not None:
            lines.append(f"{name} = {json.dumps(value)}\n")
    return "".join((*lines, *tables))
