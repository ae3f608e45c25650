"""Several statements of PostgreSQL as one, because each of them is a round trip.

The named statements stay what they are; this puts them beside each other and counts their
parameters on. Both kinds are prepared once for each combination, of which there are few.
"""

import re
from functools import lru_cache

_PARAMETER = re.compile(r"\$(\d+)")
_ARRAY = re.compile(r"(\$\d+::\w+\[\])")

COMBINATIONS = 256
"""Texts that are remembered of each kind."""


@lru_cache(COMBINATIONS)
def reading(first: str, parts: tuple[tuple[str, int], ...]) -> str:
    """The row of the query `first`, and after it what each part returns, as an array of its rows.

    A part is a query and the number of its parameters. All see the same moment.
    """
    columns, given = ["first.*"], 0
    for text, width in parts:
        columns.append(f"(SELECT array_agg(part) FROM ({_counted_on(text, given)}) AS part)")
        given += width
    return f"SELECT {', '.join(columns)} FROM ({_plain(first)}) AS first"


@lru_cache(COMBINATIONS)
def writing(take: str, note: str, tell: str, given: int, parts: tuple[tuple[str, int], ...]) -> str:
    """Statements that write all they are given if `take` returns its row, and nothing otherwise.

    The first three share `given` parameters. A part is a statement and the number of its
    parameters, all of them arrays: without that row each array is NULL, and has no rows to write.
    By this the parts also come after `take`. They do not see what the others write.
    """
    steps = [f"taken AS ({_plain(take)})", f"noted AS ({_plain(note)})"]
    for text, width in parts:
        guarded = _ARRAY.sub(r"(SELECT \1 FROM taken)", _counted_on(text, given))
        steps.append(f"part_{len(steps)} AS ({guarded})")
        given += width
    return f"WITH {', '.join(steps)} {_plain(tell)}"


def _counted_on(text: str, before: int) -> str:
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + before}", _plain(text))


def _plain(text: str) -> str:
    """Without the comments before it and the semicolon, which ends a statement of its own."""
    lines = text.rstrip().removesuffix(";").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))
