"""Time of one strict read: `tidelog.base.data.strictjson` against the ways it was chosen from.

Run: python bench/strictjson.py

`stdlib_hook` is the standard library with a duplicate-key hook, `orjson_colons` the colon count of
`strictjson` on orjson (which turns integers beyond 64 bits into floats); neither checks the depth.
`unchecked_*` are parsers that see no duplicate keys at all.
"""

import json
import os
import platform
import timeit
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import msgspec
import orjson

from tidelog.base.data import strictjson

ITEM = {
    "id": "01K7ZP3M6Q8R5S0T2V4W6X8Y0Z",
    "partitions": ["workspace-1", "user:42"],
    "event": {
        "type": "treePush",
        "payload": {
            "target": "explorer",
            "value": {"id": "n1", "name": "Kapitel 1: Überblick", "size": 12.5, "done": False},
            "options": {"parent": "_root", "position": "first"},
        },
    },
}
REPEATS = 7


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


_hooked = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def stdlib_hook(data: bytes) -> object:
    """The standard library, checking each object's pairs."""
    return _hooked.decode(data.decode())


def orjson_colons(data: bytes) -> object:
    """Orjson, checking that writing the value back gives as many colons."""
    value = orjson.loads(data)
    if b"\\u003" in data or orjson.dumps(value).count(b":") != data.count(b":"):
        raise ValueError("duplicate key")
    return value


READERS: dict[str, Callable[[bytes], object]] = {
    "strictjson": strictjson.read,
    "stdlib_hook": stdlib_hook,
    "orjson_colons": orjson_colons,
    "unchecked_stdlib": json.loads,
    "unchecked_msgspec": msgspec.json.decode,
    "unchecked_orjson": orjson.loads,
}


def best_us(read: Callable[[bytes], object], data: bytes, loops: int) -> float:
    """The fastest of several runs, in microseconds per call: the others were disturbed."""
    seconds = min(timeit.repeat(lambda: read(data), number=loops, repeat=REPEATS))
    return round(seconds / loops * 1e6, 2)


def main() -> None:
    """Print the figures with their conditions."""
    texts = {
        "one_event": (orjson.dumps(ITEM), 5000),
        "100_events": (orjson.dumps([ITEM] * 100), 50),
    }
    print(
        json.dumps(
            {
                "figure": "strictjson",
                "unit": "us per text, best of repeats",
                **{
                    name: {reader: best_us(read, *text) for reader, read in READERS.items()}
                    for name, text in texts.items()
                },
                "conditions": {
                    "bytes": {name: len(data) for name, (data, _) in texts.items()},
                    "loops": {name: loops for name, (_, loops) in texts.items()},
                    "repeats": REPEATS,
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "cpus": os.cpu_count(),
                    "msgspec": version("msgspec"),
                    "orjson": version("orjson"),
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
