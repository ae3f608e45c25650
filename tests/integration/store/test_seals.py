"""Seals: the same on both engines, for every value that a store holds."""

import sqlite3

import asyncpg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.base.data.nultext import escape
from tidelog.base.data.seal import Value, seal
from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
rows = st.tuples(
    texts | st.none(), numbers | st.none(), st.binary(max_size=20) | st.none(), texts | st.none()
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sample=st.lists(rows, min_size=1, max_size=30))
def test_a_row_has_the_seal_that_sqlite_gives_it(sample: list[tuple[Value, ...]]) -> None:
    """What a statement computes is what a verifier computes from the row it reads."""
    connection = sqlite3.connect(":memory:")
    sqlitefile.enable_seals(connection)
    for row in sample:
        [(found,)] = connection.execute("SELECT seal(?, ?, ?, ?)", row)
        assert found == seal(*row)
    connection.close()


async def test_a_row_has_the_seal_that_postgresql_gives_it(postgresql_url: str) -> None:
    """Across engines a row keeps its seal, also with characters that are written differently."""
    store = await open_store(SCHEMA, postgresql_url, log_id="L", node="n")
    await store.close()
    sample: list[tuple[Value, ...]] = []

    @settings(max_examples=100)
    @given(given_rows=st.lists(rows, min_size=1, max_size=30))
    def collect(given_rows: list[tuple[Value, ...]]) -> None:
        sample.extend(given_rows)

    collect()
    sample += [(chr(code), None, bytes([code % 256]), "") for code in range(0x100)]
    sample += [("\ue000", 1, b"", "\0\ue0000"), ("\u2028\U0001f30a/\\\"'", -1, None, "\x7f")]
    server = await asyncpg.connect(postgresql_url)
    found = await server.fetch(
        "SELECT tidelog.seal(json_build_array(a, b, encode(c, 'hex'), d)) "
        "FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::text[]) AS row (a, b, c, d)",
        *(
            [escape(value) if isinstance(value, str) else value for value in column]
            for column in zip(*sample, strict=True)
        ),
    )
    await server.close()
    assert [record[0] for record in found] == [seal(*row) for row in sample]


def test_no_two_rows_look_alike() -> None:
    """Values do not run into each other, and nothing is not the empty text."""
    looks = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), ("1", 2), (1, "2")]
    looks += [("a,b", ""), ('a","b', "")]
    assert len({seal(*row) for row in looks}) == len(looks)
