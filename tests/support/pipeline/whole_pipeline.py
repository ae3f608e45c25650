"""Every job of the pipeline on one store, and what came out of it.

`whole_lake` does it by the command that a user types; `run_everything` with any session.

As a program, `python -m support.pipeline.whole_pipeline JSON` does it in a process with a
session of its own; the JSON names store, lake, master and settings of Spark.
"""

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
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.fill.derived_tables import build, buildable
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import index_root, read_manifest
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import spark_session
from tidelog.sync.protocol.profiles import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.transforms.snapshots import ModelSource

ENTRIES = 600
CHANNEL = f"{APP.id}/room-9"
PARTITION = "team/3"


class Outcome(NamedTuple):
    """What the jobs made beside the tables of the lake."""

    through: int
    unsound: list[str]
    """Verdicts with findings, in words."""
    examined: dict[str, int]
    """By check."""
    then: dict[str, list[str]]
    """What a channel, a partition and the mesh were half-way through the log, row by row."""


def make_tables(spark: "SparkSession", address: StoreAddress, lake: Lake, model: Model) -> int:
    """Ingest and build of all tables; returns what they are complete through."""
    through = ingest(spark, address, lake)
    build(spark, lake, address, model=model)
    return through


def whole_model() -> Model:
    """The model of the store's partitions."""
    return Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])


def run_everything(spark: "SparkSession", store: str, lake: Lake) -> Outcome:
    """Ingest, build of all tables, search index, all checks and time travel."""
    address, model = StoreAddress(store), whole_model()
    with lake.writing():
        through = make_tables(spark, address, lake, model)
        update_index(spark, lake)
        source = model_in_use(address, model)
        verdicts = run_checks((), spark, address, lake, model=source)
    return Outcome(
        through,
        [str(verdict) for verdict in verdicts if not verdict.is_sound],
        {verdict.check: verdict.examined for verdict in verdicts},
        half_way(spark, lake, through, source),
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

    def outcome(self, spark: "SparkSession") -> Outcome:
        """What `run_everything` would have returned."""
        checks, through = self.result["checks"], self.result["ingest"]["through"]
        source = model_in_use(StoreAddress(str(self.store)), whole_model())
        return Outcome(
            through,
            [each["check"] for each in checks if not each["is_sound"]],
            {each["check"]: each["examined"] for each in checks},
            half_way(spark, self.lake, through, source),
        )


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


def main() -> None:
    """See the head of the module."""
    told = json.loads(sys.argv[1])
    spark = spark_session(told["master"], told["conf"].items())
    try:
        outcome = run_everything(spark, told["store"], Lake(Path(told["lake"])))
    finally:
        spark.stop()
    print(json.dumps(outcome._asdict()))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
