"""Time of one canonical form: `tidelog.base.data.canonical` against the `rfc8785` package alone.

Run: python bench/canonical.py
"""

import json
import os
import platform
import timeit
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import rfc8785

from tidelog.base.data.canonical import canonical, fingerprint

EVENT: dict[str, Any] = {
    "event": {
        "type": "treePush",
        "payload": {
            "target": "explorer",
            "value": {"id": "n1", "name": "Kapitel 1: Überblick", "size": 12, "done": False},
            "options": {"parent": "_root", "position": "first"},
        },
    },
    "partitions": ["user:42", "workspace-1"],
}
EVENT_WITH_FLOAT = EVENT | {"score": 0.75}
REPEATS = 7
LOOPS = 5000


def best_us(call: Callable[[], object]) -> float:
    """The fastest of several runs, in microseconds per call: the others were disturbed."""
    return round(min(timeit.repeat(call, number=LOOPS, repeat=REPEATS)) / LOOPS * 1e6, 2)


def main() -> None:
    """Print the figures with their conditions."""
    print(
        json.dumps(
            {
                "figure": "canonical",
                "unit": "us per event, best of repeats",
                "rfc8785": best_us(lambda: rfc8785.dumps(EVENT)),
                "canonical": best_us(lambda: canonical(EVENT)),
                "fingerprint": best_us(lambda: fingerprint(EVENT)),
                "rfc8785_with_float": best_us(lambda: rfc8785.dumps(EVENT_WITH_FLOAT)),
                "canonical_with_float": best_us(lambda: canonical(EVENT_WITH_FLOAT)),
                "conditions": {
                    "event_bytes": len(canonical(EVENT)),
                    "loops": LOOPS,
                    "repeats": REPEATS,
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "cpus": os.cpu_count(),
                    "orjson": version("orjson"),
                    "rfc8785": version("rfc8785"),
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
