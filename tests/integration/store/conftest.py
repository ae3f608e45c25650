"""What several modules begin with: a backup, or nothing at all."""

import asyncio
import shutil
from pathlib import Path

import pytest

from support.log.nodes import put_item, running_node
from support.store.backups import silent
from tidelog.config.schema import SCHEMA
from tidelog.store.backup import back_up


@pytest.fixture(scope="session")
def sound_backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound backup of some pages, alone in a folder with the `source` it was made of.

    It is nobody's own: `backup_file` is a copy.
    """
    folder = tmp_path_factory.mktemp("backup")
    source = str(folder / "source" / "tidelog.db")
    target = folder / "sound-backup.db"

    async def make() -> None:
        async with running_node(source) as node:
            value = b'"' + b"x" * 300 + b'"'
            await node.put_many([put_item("s", f"key-{n:04}", value) for n in range(300)])
        await back_up(SCHEMA, source, target, silent)

    asyncio.run(make())
    return target


@pytest.fixture
def backup_file(sound_backup: Path, tmp_path: Path) -> Path:
    """A sound backup of some pages, and beside it the `source` that it was made of."""
    shutil.copytree(sound_backup.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / sound_backup.name


@pytest.fixture
def empty_location(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where nothing is yet, not even the schema that a `store_location` of PostgreSQL has."""
    if engine == "sqlite":
        return str(tmp_path / "store" / "tidelog.db")
    url: str = request.getfixturevalue("empty_postgresql_url")
    return url
