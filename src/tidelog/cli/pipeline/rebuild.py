"""`tidelog pipeline rebuild`: one table anew while the rest goes on."""

from typing import Annotated

import typer

from tidelog.cli.pipeline.workspace import (
    ConfOption,
    LakeOption,
    MasterOption,
    conf_pairs,
    print_json,
    spark_for,
    waiting,
    workspace_at,
)
from tidelog.cli.shared.options import ConfigOption, DataDirOption, JsonOption, StoreOption


def rebuild(
    table: Annotated[str, typer.Argument(help="A table that the log alone makes, such as audit.")],
    *,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    lake: LakeOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one table anew beside a pipeline that runs; readers see the old one until it is there.

    `build TABLE --full` does the same for every table, and needs the lake for itself meanwhile.

    Example: tidelog pipeline rebuild audit --data-dir ./data
    """
    conf_pairs(conf)
    with workspace_at(config, data_dir, store, lake) as workspace:
        from tidelog.pipeline.fill.rebuild import rebuild as make

        workspace.require_same_log()
        with (
            spark_for(master, conf, workspace.lake.through("log")) as spark,
            waiting(f"rebuilding {table}", is_silent=as_json),
        ):
            built = make(spark, workspace.lake, workspace.store, table)
    if as_json:
        print_json(built._asdict())
    else:
        typer.echo(
            f"{built.name}: {built.rows:,} rows made in {built.seconds:.1f} s; "
            f"it is complete to {built.through:,}"
        )
