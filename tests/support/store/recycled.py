"""Databases of a PostgreSQL that one test after another has, emptied in between.

To make one and to remove it takes PostgreSQL several times as long as to empty one, and most tests
write to a handful of tables. What a test has changed beside rows is not put right: such a database
is removed, and the next test has a new one.
"""

import asyncpg

from tidelog.testing.postgresql import create_database, drop_database

LARGE_BYTES = 32 << 20
"""A database larger than this is removed: what is in memory is to stay little."""

PROBE = "DROP TABLE IF EXISTS probe_stream"
"""What a server with the probe makes at its start."""

SHAPE = """
SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
    SELECT concat_ws(' ', 'class', oid, relname, relkind, relnatts, relacl, relowner, reloptions,
                     relpersistence, relhasrules, relhastriggers, relrowsecurity)
    FROM pg_class WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'attribute', attrelid, attnum, xmin)
    FROM pg_attribute WHERE attrelid >= 16384 AND attnum > 0
    UNION ALL SELECT concat_ws(' ', 'constraint', oid, xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'default', oid, xmin) FROM pg_attrdef
    UNION ALL SELECT concat_ws(' ', 'extension', oid, xmin) FROM pg_extension
    UNION ALL SELECT concat_ws(' ', 'function', oid, xmin) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'rights', oid, xmin) FROM pg_default_acl
    UNION ALL SELECT concat_ws(' ', 'rule', oid, xmin) FROM pg_rewrite WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'schema', oid, xmin) FROM pg_namespace
        WHERE nspname !~ '^pg_(toast_)?temp_'
    UNION ALL SELECT concat_ws(' ', 'trigger', oid, xmin, tgenabled) FROM pg_trigger
    UNION ALL SELECT concat_ws(' ', 'statistics', oid, xmin) FROM pg_statistic_ext
    UNION ALL SELECT concat_ws(' ', 'version', version) FROM tidelog.schema_version
    UNION ALL SELECT concat_ws(' ', 'database', datconnlimit, datallowconn, datacl)
    FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT concat_ws(' ', 'setting', setrole, setconfig)
    FROM pg_db_role_setting JOIN pg_database d ON setdatabase = d.oid
    WHERE datname = current_database()
) AS everything (line)
"""
"""Everything that a test can change beside rows, as one value. Copies of a database have the same:
numbers and transactions of the catalogue's rows are copied too."""

OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

WRITTEN = """
SELECT string_agg(format('%I.%I', nspname, relname), ', '), pg_database_size(current_database())
FROM pg_class JOIN pg_namespace n ON relnamespace = n.oid
WHERE relkind = 'r' AND nspname = 'tidelog' AND relname <> 'schema_version'
    AND pg_relation_size(pg_class.oid) > 0
"""

COUNT_ANEW = """
SELECT setval(oid::regclass, 1, false) FROM pg_class
WHERE relkind = 'S' AND relnamespace = 'tidelog'::regnamespace
"""


class Databases:
    """Databases of one server that are copies of one template."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._used: list[str] = []
        self._shape: str | None = None
        """That of the template."""

    async def take(self) -> str:
        """URL of one that is as the template is."""
        while self._used:
            database = self._used.pop()
            if await self._is_emptied(database):
                return database
            await drop_database(database)
        database = await create_database(self._server, template=self._template)
        if self._shape is None:
            connection = await asyncpg.connect(database)
            self._shape = await connection.fetchval(SHAPE)
            await connection.close()
        return database

    def give_back(self, database: str) -> None:
        """Let the next one have it; it is emptied then, when nobody is connected any more."""
        self._used.append(database)

    async def close(self) -> None:
        """Remove them."""
        while self._used:
            await drop_database(self._used.pop())

    async def _is_emptied(self, database: str) -> bool:
        try:
            connection = await asyncpg.connect(database)
        except (asyncpg.PostgresError, OSError):  # a test has removed it, or lets nobody in
            return False
        try:
            if await connection.fetchval(OTHERS):
                return False
            await connection.execute(PROBE)
            if await connection.fetchval(SHAPE) != self._shape:
                return False
            [(written, size)] = await connection.fetch(WRITTEN)
            if size > LARGE_BYTES:
                return False
            if written:
                await connection.execute(f"TRUNCATE {written}")
            await connection.execute(COUNT_ANEW)
        finally:
            await connection.close()
        return True
