"""What costs more where there is more: ratios of one operation at two sizes, from one run.

The servers are real processes, the clients are this one. Each figure is measured at a large and at
a small size on the same machine within the same minute, so the ratio means something where the
costs alone do not. Prints one JSON document; `at_most` is what the ratio is meant to keep to.

A figure is a function of `size_parts`; add it to `FIGURES` there.

Example: python bench/size.py --only sync
"""

import argparse
import json
import os
import platform
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from size_parts import channels, store, sync

FIGURES = (*channels.FIGURES, *store.FIGURES, *sync.FIGURES)


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    began = time.perf_counter()
    document: dict[str, Any] = {
        "bench": "size",
        "conditions": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "synchronous": "FULL",
            "quick": options.quick,
            "load_average_before": [round(load, 2) for load in os.getloadavg()],
        },
        "figures": {},
    }
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-size-") as directory:
        for number, figure in enumerate(FIGURES):
            if options.only in figure.name:
                home = Path(directory, str(number))
                document["figures"][figure.name] = figure.print_as(home, quick=options.quick)
    document["conditions"]["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "; ".join(figure.name for figure in FIGURES)
    parser.add_argument("--only", default="", help=f"only figures whose name has this: {names}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    main(parser.parse_args())
