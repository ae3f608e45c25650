"""An object store: objects by key, a put that only one of several can win, and errors in our words.

Keys and addresses come from the environment, by the names that AWS and Azure gave them, and are the
same for delta-rs, which has the same library inside. They are never repeated in an error.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from tidelog.base.errors import TidelogError

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import AzureStore, ClientConfig, RetryConfig, S3Store

_CHUNK_BYTES = 8 * 1024 * 1024
"""Of an object that is read piece by piece."""

_PATIENCE = timedelta(seconds=20)
_TRIES = 4
"""How long a request is tried again: whoever waits wants to know what is wrong."""

_SECRETS = ("KEY", "SECRET", "TOKEN", "SAS", "PASSWORD")
_LONGEST = 300


class LakeUnavailable(TidelogError):  # noqa: N818 - the failure is the noun
    """The object store does not do what it is asked."""


class Found(NamedTuple):
    """An object."""

    content: bytes
    tag: str
    """Tells this content from any that is put later."""


class ObjectStore:
    """What is below one URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options = _options(url)
        """What delta-rs is told beside the environment."""
        with self._told():
            self._store = _opened(url, is_plain="aws_allow_http" in self.options)
        self._is_known = False

    def require(self) -> None:
        """Make sure, once, that it can be used at all: others say less clearly why not.

        Raises:
            LakeUnavailable: it cannot.
        """
        import obstore

        if self._is_known:
            return
        with self._told():
            next(iter(obstore.list(self._store, chunk_size=1)), None)
        self._is_known = True

    def get(self, key: str) -> Found | None:
        """An object; None if there is none."""
        import obstore

        with self._told():
            try:
                found = obstore.get(self._store, key)
                return Found(bytes(found.bytes()), found.meta["e_tag"] or "")
            except FileNotFoundError:
                return None

    def tag(self, key: str) -> str | None:
        """What tells the content of an object from any other; None if there is none."""
        import obstore

        with self._told():
            try:
                return obstore.head(self._store, key)["e_tag"] or ""
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes, instead: str | None = None) -> str | None:
        """Put an object that is not there, or in the place of one; returns its tag.

        Args:
            key: Its key.
            content: Its content.
            instead: Tag of the one that it replaces; None if there is none.

        Returns:
            None if somebody else has put one since.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._told(is_put=True):
            try:
                mode: PutMode = "create" if instead is None else {"e_tag": instead}
                return obstore.put(self._store, key, content, mode=mode)["e_tag"] or ""
            except (AlreadyExistsError, PreconditionError):
                return None

    def send(self, file: Path, key: str) -> None:
        """Put a file, whatever was there."""
        import obstore

        with self._told(is_put=True):
            obstore.put(self._store, key, file)

    def fetch(self, key: str, file: Path) -> None:
        """Get an object as a file, which is there as a whole or not at all.

        Raises:
            FileNotFoundError: there is no such object.
        """
        import obstore

        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{uuid4().hex}.parquet")  # what a kill leaves goes with old copies
        try:
            with self._told(), part.open("wb") as target:
                found = obstore.get(self._store, key)
                for chunk in found.stream(min_chunk_size=_CHUNK_BYTES):
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())  # that it is there will be taken for all of it
            changed = found.meta["last_modified"].timestamp()
            os.utime(part, (changed, changed))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

    def digest(self, key: str) -> str:
        """What names a file of a table after its content, of an object."""
        import obstore

        digest = blake2b(digest_size=16)
        with self._told():
            for chunk in obstore.get(self._store, key).stream(min_chunk_size=_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def keys(self, prefix: str) -> list[str]:
        """Keys below a prefix."""
        import obstore

        with self._told():
            return [each["path"] for part in obstore.list(self._store, prefix) for each in part]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, if they are there."""
        import obstore

        with self._told():
            for key in keys:
                try:
                    obstore.delete(self._store, key)
                except FileNotFoundError:
                    continue

    @contextmanager
    def _told(self, *, is_put: bool = False) -> Iterator[None]:
        try:
            from obstore.exceptions import BaseError
        except ImportError as error:
            raise TidelogError(
                "a lake on an object store needs obstore. Install: pip install 'tidelog[pipeline]'"
            ) from error

        try:
            yield
        except FileNotFoundError as error:
            if not is_put:
                raise
            raise LakeUnavailable(self.in_words(error)) from None  # the bucket is not there
        except BaseError as error:
            raise LakeUnavailable(self.in_words(error)) from None

    def in_words(self, error: Exception) -> str:
        """What went wrong, and what to do, without anything that is secret."""
        said = without_secrets(str(error))
        bucket = urlsplit(self.url).netloc
        if "NoSuchBucket" in said or "ContainerNotFound" in said:
            return f"there is no bucket {bucket} for the lake {self.url}. Make it, or name another."
        kind = type(error).__name__
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or any(
            word in said for word in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied")
        ):
            return (
                f"the lake {self.url} may not be used with these credentials. Set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of Azure, to a key that may "
                "read, write and list there."
            )
        first = said.partition("\n")[0][:_LONGEST]
        return f"the lake {self.url} cannot be reached or used: {first}"


def _opened(url: str, *, is_plain: bool) -> "S3Store | AzureStore":
    from obstore.store import AzureStore, S3Store

    parts = urlsplit(url)
    prefix = parts.path.strip("/") or None
    client: ClientConfig = {"allow_http": is_plain}
    retry: RetryConfig = {"max_retries": _TRIES, "retry_timeout": _PATIENCE}
    if parts.scheme == "az":
        return AzureStore(parts.netloc, prefix=prefix, client_options=client, retry_config=retry)
    return S3Store(parts.netloc, prefix=prefix, client_options=client, retry_config=retry)


def _options(url: str) -> dict[str, str]:
    """A commit is a put that only one can win; an endpoint of http may be one."""
    if not url.startswith("s3:"):
        return {}
    options = {"aws_conditional_put": "etag"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    if endpoint.startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def without_secrets(text: str) -> str:
    """A text without what the environment keeps secret."""
    for name, value in os.environ.items():
        if (
            name.startswith(("AWS_", "AZURE_"))
            and any(word in name for word in _SECRETS)
            and value in text
            and value
        ):
            text = text.replace(value, "***")
    return text
