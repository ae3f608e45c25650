"""Iceberg metadata beside the Delta tables, for readers that know that format.

The Parquet files are the same; only what says which of them make a table is written twice. It lies
in a folder of its own, since whatever Delta does not know in a table's folder is vacuumed away:
`_iceberg/TABLE/metadata/vN.metadata.json`, with `version-hint.text` saying which N is newest, as
readers without a catalog expect it.

A table has one snapshot at a time, that of the newest Delta version: older ones name files that
the lake deletes. Metadata that no reader needs is deleted as such files are, an hour later. It says
the smallest and largest values of positions and times alone, so nothing of what is forgotten stays.
"""

import importlib.util
import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from tidelog.base.errors import TidelogError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import VACUUM_AFTER
from tidelog.pipeline.lake.statistics import sought_columns
from tidelog.pipeline.tables import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.types import IcebergType

FOLDER = "_iceberg"
HINT = "version-hint.text"

_DELTA_VERSION = "tidelog.delta-version"
_THROUGH = "tidelog.through"
"""Among the properties: which Delta version is shown, and through which position it is complete."""

_NAMESPACE = "lake"
_LOG = logging.getLogger(__name__)


class Described(NamedTuple):
    """What became of the metadata of one table."""

    table: str
    version: int
    """Which `vN.metadata.json` is newest."""
    files: int
    rows: int
    is_new: bool
    """Whether it had to be written."""
    metadata: str
    """Path of the newest metadata."""


def is_described(lake: Lake) -> bool:
    """Whether a lake has such metadata: it is then written again whenever its tables change."""
    return (lake.root / FOLDER).is_dir()


def describe(lake: Lake, names: "Iterable[str] | None" = None) -> list[Described]:
    """Write the metadata of tables that have changed since; the caller may write to the lake.

    Args:
        lake: The lake.
        names: Its tables; all that are there if None.

    Raises:
        TidelogError: the library that writes it is not installed.
    """
    lake.require_directory("Iceberg metadata is written beside the tables")
    if importlib.util.find_spec("pyiceberg") is None:
        raise TidelogError(
            "Iceberg metadata is written with pyiceberg. Install: pip install 'tidelog[iceberg]'"
        )
    wanted = [table.name for table in TABLES] if names is None else list(names)
    found = [_describe(lake, name) for name in wanted if lake.delta(name) is not None]
    gone = {table.name for table in TABLES if lake.delta(table.name) is None}
    for name in gone:
        shutil.rmtree(lake.root / FOLDER / name, ignore_errors=True)
    return found


def describe_again(lake: Lake) -> None:
    """After tables have changed: if there is metadata of them, write it again.

    The tables are right without it, so a failure is logged and ends nothing.
    """
    if not is_described(lake):
        return
    try:
        describe(lake)
    except (TidelogError, OSError) as error:
        _LOG.warning(
            "the Iceberg metadata in %s is older than the tables: %s. Write it again: "
            "`tidelog pipeline iceberg`.",
            lake.root / FOLDER,
            error,
        )


def _describe(lake: Lake, name: str) -> Described:
    delta, table = lake.delta(name), BY_NAME[name]
    assert delta is not None  # noqa: S101 - the caller has looked
    folder = lake.root / FOLDER / name / "metadata"
    known, version = _newest(folder)
    if known is not None and known.schema().fields != _schema(table).fields:
        known = None
    is_new = known is None or known.properties.get(_DELTA_VERSION) != str(delta.version())
    data = [] if known is None else [task.file for task in known.scan().plan_files()]
    if is_new:
        noted = {_DELTA_VERSION: str(delta.version()), _THROUGH: str(lake.through(name))}
        made = _created(table, lake.root / FOLDER / name, noted)
        data = _add_files(made, lake.files(name), data)
        version += 1
        _publish(folder, made, version, None if known is None else str(known.metadata.table_uuid))
        _clean(folder, made, version)
    path, rows = folder / f"v{version}.metadata.json", sum(file.record_count for file in data)
    return Described(name, version, len(data), rows, is_new, str(path))


def _newest(folder: Path) -> "tuple[IcebergTable | None, int]":
    """The table as its newest metadata has it, and the number of that; 0 if there is none."""
    from pyiceberg.catalog.memory import InMemoryCatalog

    try:
        version = int((folder / HINT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None, 0
    path = folder / f"v{version}.metadata.json"
    if not path.is_file():
        return None, version
    catalog = InMemoryCatalog("tidelog", warehouse=folder.parent.parent.as_uri())
    catalog.create_namespace(_NAMESPACE)
    return catalog.register_table(f"{_NAMESPACE}.{folder.parent.name}", path.as_uri()), version


def _created(table: Table, location: Path, noted: dict[str, str]) -> "IcebergTable":
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.table import TableProperties

    schema = _schema(table)
    catalog = InMemoryCatalog("tidelog", warehouse=location.parent.as_uri())
    catalog.create_namespace(_NAMESPACE)
    sought = {f"write.metadata.metrics.column.{name}": "full" for name in sought_columns(table)}
    return catalog.create_table(
        f"{_NAMESPACE}.{table.name}",
        schema,
        location=location.as_uri(),
        properties={
            "comment": table.meaning,
            **noted,
            # The files have no numbers of their own for their columns.
            TableProperties.DEFAULT_NAME_MAPPING: schema.name_mapping.model_dump_json(),
            "write.metadata.metrics.default": "none",
            **sought,
        },
    )


def _schema(table: Table) -> "Schema":
    from pyiceberg import types
    from pyiceberg.schema import Schema, assign_fresh_schema_ids

    kinds: dict[str, IcebergType] = {
        "bigint": types.LongType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestamptzType(),
        "double": types.DoubleType(),
    }
    texts = types.ListType(len(table.columns) + 1, types.StringType(), element_required=False)
    fields = [
        types.NestedField(number, column.name, kinds.get(column.kind, texts), doc=column.meaning)
        for number, column in enumerate(table.columns, 1)
    ]
    return assign_fresh_schema_ids(Schema(*fields))  # numbers as a new table has them


def _add_files(
    table: "IcebergTable", files: "Sequence[str]", known: "Sequence[DataFile]"
) -> "list[DataFile]":
    """Make the one snapshot of a table; of its files only those that are new are looked at."""
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    wanted = {Path(file).as_uri() for file in files}
    data = [file for file in known if file.file_path in wanted]
    new = sorted(wanted - {file.file_path for file in data})
    data += parquet_files_to_data_files(table.io, table.metadata, iter(new))
    with (
        table.transaction() as change,
        change.update_snapshot().fast_append() as snapshot,
    ):
        for file in data:
            snapshot.append_data_file(file)
    return data


def _publish(folder: Path, table: "IcebergTable", version: int, uuid: str | None) -> None:
    """Write metadata under the name that readers without a catalog look for.

    Each version is made anew, since pyiceberg would drag along what says which files are gone, for
    every version there ever was. To its readers it stays the same table.
    """
    metadata = orjson.loads(table.metadata.model_dump_json())
    metadata |= {"metadata-log": []} | ({} if uuid is None else {"table-uuid": uuid})
    (folder / f"v{version}.metadata.json").write_bytes(orjson.dumps(metadata))
    hint = folder / f"{HINT}.new"
    hint.write_text(str(version), encoding="utf-8")
    hint.replace(folder / HINT)


def _clean(folder: Path, table: "IcebergTable", version: int) -> None:
    """Delete what the newest metadata does not need, once nobody reads it any more."""
    snapshot = table.current_snapshot()
    needed = {HINT, f"v{version}.metadata.json"}
    if snapshot is not None:
        needed.add(Path(snapshot.manifest_list).name)
        needed |= {Path(manifest.manifest_path).name for manifest in snapshot.manifests(table.io)}
    before = time.time() - VACUUM_AFTER.total_seconds()
    for file in folder.iterdir():
        is_ours = file.suffix == ".json" and not file.name.startswith("v")  # nobody was told of it
        if file.name not in needed and (is_ours or file.stat().st_mtime < before):
            file.unlink()
