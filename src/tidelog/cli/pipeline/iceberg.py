"""`tidelog pipeline iceberg`: the tables for readers of that format."""

from typing import Annotated

import typer

from tidelog.base.errors import ConfigError
from tidelog.cli.pipeline.workspace import LakeOption, print_json, workspace_at
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption
from tidelog.cli.shared.progress import progress_bar


def iceberg(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables; default: all that are there."),
    ] = None,
    *,
    data_dir: DataDirOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write Iceberg metadata beside the tables, for readers of that format.

    The Parquet files are shared. From then on every command that changes a table keeps the
    metadata up to date; to stop that, delete the folder `_iceberg` of the lake.

    Example: tidelog pipeline iceberg message
    """
    with workspace_at(config, data_dir, None, lake) as workspace:
        from tidelog.pipeline.lake.iceberg import describe
        from tidelog.pipeline.tables import BY_NAME

        if unknown := [name for name in tables or () if name not in BY_NAME]:
            raise ConfigError(
                f"{', '.join(unknown)}: not a table of the lake. Tables: {', '.join(BY_NAME)}."
            )
        with workspace.lake.writing(), progress_bar("writing metadata"):
            found = describe(workspace.lake, tables or None)
        if not found:
            raise ConfigError(
                f"there is nothing to describe in {workspace.lake.root} yet. "
                "Build tables first: `tidelog pipeline run`."
            )
    if as_json:
        print_json([each._asdict() for each in found])
        return
    for each in found:
        state = "written" if each.is_new else "current"
        typer.echo(f"{each.table}: {each.rows:,} rows, {state}: {each.metadata}")
