"""Reading the model that the configuration names."""

import json
from pathlib import Path
from typing import Any

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.settings import SyncSettings


def read_model(settings: SyncSettings) -> Model:
    """The model in `sync.model_file`; one that allows nothing if no file is named."""
    document: dict[str, Any] = {}
    if settings.model_file:
        try:
            document = json.loads(Path(settings.model_file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"sync.model_file: {settings.model_file}: {error}") from error
    return Model.parse(
        document.get("tree_targets", {}),
        document.get("schemas", {}),
        1 if (version := document.get("model_version")) is None else version,
        settings.profiles,
    )
