"""Every job of the pipeline on one store, by the command that a user types, and what came of it."""

import fcntl
import io
import json
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.channels.peer import APP
from support.pipeline import mixed_log
from support.sync.peer import ADMIN_TOKEN, MODEL, write_model
from tidelog.cli.main import main as command
from tidelog.pipeline.as_of import Kind, as_of
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import index_root, read_manifest
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.sync.protocol.profiles import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.transforms.snapshots import ModelSource

ENTRIES = 600
SHARED_VARIABLE = "TIDELOG_TEST_SHARED"
"""Names a folder that all parts of a run of `scripts/test` share."""
CHANNEL = f"{APP.id}/room-9"
PARTITION = "team/3"


class Outcome(NamedTuple):
    """What a run made beside the tables of the lake."""

    through: int
    unsound: list[str]
    """Checks with findings."""
    examined: dict[str, int]
    """By check."""
    then: dict[str, list[str]]
    """What a channel, a partition and the mesh were half-way through the log, row by row."""


def whole_model() -> Model:
    """The model of the store's partitions."""
    return Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])


def outcome(
    spark: "SparkSession", lake: Lake, address: StoreAddress, result: dict[str, Any]
) -> Outcome:
    """What `tidelog pipeline run` printed, and the past as the lake has it since."""
    checks, through = result["checks"], result["ingest"]["through"]
    return Outcome(
        through,
        [each["check"] for each in checks if not each["is_sound"]],
        {each["check"]: each["examined"] for each in checks},
        half_way(spark, lake, through, model_in_use(address, whole_model())),
    )


def half_way(
    spark: "SparkSession", lake: Lake, through: int, source: "ModelSource | None"
) -> dict[str, list[str]]:
    """What a channel, a partition and the mesh were in the middle of the log, row by row."""
    [mesh] = lake.arrow("send", ["mesh_id"])["mesh_id"].unique().to_pylist()
    asked: dict[Kind, str] = {"channel": CHANNEL, "partition": PARTITION, "mesh": mesh}
    then: dict[str, list[str]] = {}
    for kind, name in asked.items():
        state = as_of(spark, lake, through // 2, kind, name, source)
        then[kind] = _texts(state.rows.to_pylist())
    return then


class WholeLake(NamedTuple):
    """A store, and what `tidelog pipeline run` made of it; tests that change it take a copy."""

    folder: Path
    result: dict[str, Any]
    """What the command printed."""

    @property
    def store(self) -> Path:
        """The store."""
        return self.folder / "tidelog.db"

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.folder / "lake")

    def arguments(self) -> tuple[str, ...]:
        """Options that name both."""
        return ("--config", str(self.folder / "tidelog.toml"))

    def copy(self, folder: Path) -> "WholeLake":
        """The same elsewhere, to be damaged."""
        shutil.copytree(self.folder, folder)
        write_config(folder)
        return self._replace(folder=folder)


def write_config(folder: Path, *, has_keys: bool = True) -> None:
    """The configuration of a server whose store and lake are in the folder."""
    lines = [f"data_dir = {json.dumps(str(folder))}"]
    if has_keys:
        lines += [
            f'admin_token = "{ADMIN_TOKEN}"',
            "[[apps]]",
            *(f"{n} = {json.dumps(getattr(APP, n))}" for n in ("id", "key", "secret")),
        ]
    lines += ["[sync]", f"model_file = {json.dumps(write_model(folder, MODEL))}"]
    (folder / "tidelog.toml").write_text("\n".join(lines), encoding="utf-8")


def whole_lake(folder: Path) -> WholeLake:
    """A small log of everything, purged and archived in part, and all that is made of it.

    The command runs in this process, and finds the session that is here.
    """
    written = mixed_log.write(str(folder / "tidelog.db"), ENTRIES, 11)
    assert min(written.purged, written.archived, written.delivered) > 0
    write_config(folder)
    config = ("--config", str(folder / "tidelog.toml"))
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(io.StringIO()) as out:
        patched.setattr(sys, "argv", ["tidelog", "pipeline", "run", "--json", *config])
        with pytest.raises(SystemExit) as ended:
            command()
    assert not ended.value.code, out.getvalue()
    return WholeLake(folder, json.loads(out.getvalue()))


def shared_whole_lake(folder: Path) -> WholeLake:
    """The same, made by the first process that asks for it; others wait and then read it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder.with_suffix(".json")
    with folder.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            done.write_text(json.dumps(whole_lake(folder).result), encoding="utf-8")
    return WholeLake(folder, json.loads(done.read_text(encoding="utf-8")))


def contents(lake: Lake) -> dict[str, list[str]]:
    """All rows of all tables that are made of the log, in an order of their own."""
    return {name: _texts(lake.arrow(name).to_pylist()) for name in ("log", *buildable())}


def documents(lake: Lake) -> int:
    """Messages in the search index."""
    manifest = read_manifest(index_root(lake.root))
    return 0 if manifest is None else manifest.documents


def _texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=_text) for row in rows)


def _text(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray)) else str(value)
