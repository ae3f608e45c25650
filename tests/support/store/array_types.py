"""What asyncpg would ask PostgreSQL about arrays on every connection.

It is a query over the whole catalogue, six milliseconds of the processor and so the dearest of most
tests with a database, and its result is the same for ever: the numbers of these types are part of
PostgreSQL. A server that a test starts from nothing asks it, as users' servers do.
"""

from typing import Any

import asyncpg

ELEMENTS = {1001: (17, "bytea"), 1016: (20, "int8"), 2287: (2249, "record")}
"""By the number of the array."""


class NothingAsked:
    """In place of the query. That it has a name tells asyncpg that no nameless one was replaced."""

    name = "none"


def remember() -> None:
    """Let asyncpg know them, in this process and its forks."""
    connections: Any = asyncpg.Connection  # the method is its own affair, and has no type
    ask = connections._introspect_types

    async def known(self: Any, typeoids: set[int], *rest: Any) -> tuple[Any, Any]:
        if ELEMENTS.keys() >= typeoids:
            return [_array(oid, *ELEMENTS[oid]) for oid in typeoids], NothingAsked
        found: tuple[Any, Any] = await ask(self, typeoids, *rest)
        return found

    connections._introspect_types = known


def _array(oid: int, element: int, element_name: str) -> dict[str, Any]:
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{element_name}",
        "kind": b"b",
        "elemtype": element,
        "elemtype_name": element_name,
        "elemdelim": b",",
        **dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames")),
    }
