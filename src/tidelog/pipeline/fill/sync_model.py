"""Which model of the sync surface is in use; nothing here loads Spark."""

from typing import TYPE_CHECKING

from tidelog.pipeline.source.relations import Moment, read_relations
from tidelog.pipeline.transforms.snapshots import ModelSource

if TYPE_CHECKING:
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.sync.protocol.profiles import Model

MODEL_VERSION = "model_version"
"""The setting of the sync surface that says which model version is in use."""


def model_in_use(store: "StoreAddress", model: "Model | None") -> ModelSource:
    """A model in the version that the store says is in use."""
    return model_source(read_relations(store, ["sync_setting"]), model)


def model_source(moment: Moment, model: "Model | None") -> ModelSource:
    """A model in the version that was in use at a moment; its relations have `sync_setting`."""
    settings = moment.tables["sync_setting"].to_pylist()
    stored = {row["name"]: row["value"] for row in settings}.get(MODEL_VERSION)
    configured = 1 if model is None else model.model_version
    targets = {} if model is None else model.targets
    return ModelSource.of(targets, configured if stored is None else stored)
