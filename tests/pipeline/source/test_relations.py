"""Relations of the store: every query runs on both engines and answers the columns it should."""

from typing import TYPE_CHECKING

from support.log.log_writer import draft, write_log
from tidelog.pipeline.source.relations import RELATIONS, read_relations
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_relation_is_read_with_its_columns(
    spark: "SparkSession", store_location: str
) -> None:
    """All at one moment, also where a relation is empty and its columns have no type."""
    write_log(store_location, [draft(1), draft(2)])
    moment = read_relations(StoreAddress(store_location), RELATIONS)
    assert moment.head.committed_id == 2
    for name, columns in RELATIONS.items():
        found = dict(moment.frame(spark, name).dtypes)
        assert found == dict(columns), name
