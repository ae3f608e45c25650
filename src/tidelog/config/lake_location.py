"""Where a lake may be: the one place that decides which kinds of locations there are."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog.base.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def lake_directory(location: str, name: str) -> Path:
    """The directory that a path or a `file:` URL names.

    Args:
        location: What was given.
        name: Of the setting or the option it was given by.

    Raises:
        ConfigError: it is a URL of something else.
    """
    found = _SCHEME.match(location)
    if found is None:
        return Path(location)
    scheme = found[1].lower()
    url = urlsplit(location)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        what = f"{scheme}://" if scheme != "file" else f"another host ({url.netloc})"
        raise ConfigError(
            f"{name}: a lake on {what} is not supported. Give a directory, such as /srv/lake or "
            "file:///srv/lake; for a cluster, one that all its machines see"
        )
    return Path(unquote(url.path))
