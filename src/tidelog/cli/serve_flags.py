"""The command line of `tidelog serve`, read without what reads all others.

To import that, and every command with it, was nearly half of the CPU in which a server starts.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Read = Callable[[str], Any]
"""The value of an option, None if it is not a plain one."""


def _one_of(*choices: str) -> Read:
    return lambda text: text if text in choices else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else None


def _path(text: str) -> Path | None:
    return Path(text) if text else None


_OPTIONS: Mapping[str, tuple[str, Read]] = {
    "--host": ("host", str),
    "--port": ("port", _number),
    "--data-dir": ("data_dir", str),
    "--store": ("store", str),
    "--config": ("config", _path),
    "--workers": ("workers", str),
    "--log-level": ("log_level", _one_of("debug", "info", "warning", "error")),
    "--log-format": ("log_format", _one_of("text", "json")),
}
_SWITCHES = {"--dev": "dev", "--json": "as_json"}


def read_flags(arguments: Sequence[str]) -> dict[str, Any] | None:
    """What `serving.run` is given; None for another command, and for all that has to be explained.

    Whatever is not plainly right is left to the command itself, which also says what is wrong.
    """
    if list(arguments[:1]) != ["serve"]:
        return None
    flags: dict[str, Any] = {}
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in _SWITCHES:
            flags[_SWITCHES[argument]] = True
            continue
        name, equals, text = argument.partition("=")
        if name not in _OPTIONS:
            return None
        if not equals:
            text = next(rest, "-")
            if text.startswith("-"):
                return None
        parameter, read = _OPTIONS[name]
        value = read(text)
        if value is None:
            return None
        flags[parameter] = value
    return flags
