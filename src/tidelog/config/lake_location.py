"""Where a lake may be: the one place that decides which kinds of locations there are."""

import re
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tidelog.base.errors import ConfigError

OBJECT_STORES = ("s3", "az")
"""Schemes of stores whose conditional put decides who commits."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_.=-]+(?:/|$))*")
"""Characters that mean the same to all who read a URL."""


class LakeLocation(NamedTuple):
    """Where a lake is."""

    root: Path
    """The directory it is in; of one on an object store, where copies of its files are kept."""
    url: str = ""
    """Of the object store, if it is on one."""


def lake_location(location: str, name: str, cache: Path) -> LakeLocation:
    """Where a path, a `file:` URL or a URL of an object store points to.

    Args:
        location: What was given.
        name: Of the setting or the option it was given by.
        cache: Directory for copies of files of lakes on object stores.

    Raises:
        ConfigError: it is a URL of something else.
    """
    found = _SCHEME.match(location)
    if found is None:
        return LakeLocation(Path(location))
    scheme = found[1].lower()
    url = urlsplit(location)
    if scheme in OBJECT_STORES:
        bucket, prefix = url.netloc, url.path.strip("/")
        if (
            not _BUCKET.fullmatch(bucket)
            or not _PREFIX.fullmatch(prefix)
            or {".", ".."} & set(prefix.split("/"))
            or url.query
            or url.fragment
        ):
            raise ConfigError(
                f"{name}: write {scheme}://BUCKET/FOLDER, in letters, digits and . _ - = alone; "
                "keys come from the environment, such as AWS_ACCESS_KEY_ID, never from the URL"
            )
        whole = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        digest = blake2b(whole.encode(), digest_size=6).hexdigest()
        return LakeLocation(cache / f"{bucket}-{digest}", whole)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        what = f"{scheme}://" if scheme != "file" else f"another host ({url.netloc})"
        raise ConfigError(
            f"{name}: a lake on {what} is not supported. Give a directory, such as /srv/lake or "
            "file:///srv/lake; for a cluster, one that all its machines see; or an object store, "
            "s3://BUCKET/FOLDER or az://CONTAINER/FOLDER"
        )
    return LakeLocation(Path(unquote(url.path)))
