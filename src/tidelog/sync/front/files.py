"""Reading the files that the configuration names: the model and the keys of tokens."""

import json
from pathlib import Path
from typing import Any

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tokens import PUBLIC, KeyFile, Tokens
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


def read_tokens(settings: SyncSettings) -> Tokens:
    """What verifies tokens; the key file is read only if an accepted algorithm needs it."""
    key_file = None
    if not PUBLIC.isdisjoint(settings.jwt_algorithms):
        key_file = read_key_file(settings.jwt_key_file)
    return Tokens(settings.jwt_secret, key_file, settings.jwt_algorithms)


def read_key_file(name: str) -> KeyFile | None:
    """The file that `sync.jwt_key_file` names; None if it names none."""
    if not name:
        return None
    try:
        return KeyFile(name, Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"sync.jwt_key_file: {name} cannot be read: {error}") from error
