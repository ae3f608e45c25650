"""The name of a mesh in addresses, directories and settings: one rule for broker and daemon."""

import re
from typing import Final

PATTERN: Final = "[a-z0-9][a-z0-9_-]{0,62}"
"""Lower case, because a daemon's directory is named after it and some file systems fold case. It
begins with a letter or digit, so that no command takes it for an option."""

_slug = re.compile(PATTERN)


def is_slug(value: object) -> bool:
    """Whether a mesh can have this name."""
    return isinstance(value, str) and _slug.fullmatch(value) is not None
