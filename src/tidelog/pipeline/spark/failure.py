"""What went wrong, in words of ours: an error may have come through Python, Java and Python again.

Spark runs our code in processes of its own. What it raises there arrives as text, at the end of a
traceback inside a Java exception.
"""

import re

from tidelog.base import errors
from tidelog.base.errors import TidelogError
from tidelog.pipeline.lake.object_store import without_secrets
from tidelog.pipeline.source.store_address import LogReplaced

_CAUSE = re.compile(r"^(?:tidelog\.[\w.]+\.)(\w+): (.*)$", re.MULTILINE)
"""How Python names an error of ours at the end of a traceback from another process."""

_KNOWN: tuple[type[TidelogError], ...] = (
    LogReplaced,
    errors.ConfigError,
    errors.StoreUnavailable,
)
"""Errors that somebody tells apart; of others the words are what matters."""

_PYTHON = re.compile(r"^([\w.]+(?:Error|Exception)\b: .*)$", re.MULTILINE)
"""The end of a traceback of Python."""

_ROOMS = ("pyspark", "py4j")
_LONGEST = 400
"""Characters of a foreign message that are told: enough for its first sentence."""


class SparkFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """Spark gave up for a reason that is not one of ours."""


def own_cause(error: BaseException) -> TidelogError | None:
    """The error of ours inside an error of Spark's; None if there is none."""
    found = _CAUSE.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kinds = {kind.__name__: kind for kind in _KNOWN}
    return kinds.get(name, TidelogError)(text)


def explained(error: Exception) -> TidelogError | None:
    """What an error means for who ran a command; None if it is a defect of ours."""
    if isinstance(error, TidelogError):
        return error
    if type(error).__module__.partition(".")[0] in _ROOMS:
        return own_cause(error) or SparkFailed(
            f"Spark failed: {first_line(error)} What was committed stays; run it again. "
            "`--conf spark.log.level=WARN` shows what Spark says."
        )
    if type(error).__module__.startswith("deltalake"):
        said = without_secrets(first_line(error))
        return TidelogError(f"the lake cannot be used: {said}")
    if isinstance(error, OSError):
        said = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        return TidelogError(without_secrets(said))
    return None


def first_line(error: Exception) -> str:
    """What a foreign error says first, as a sentence."""
    text = str(error)
    if "Traceback (most recent" in text and (raised := _PYTHON.findall(text)):
        text = raised[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Py4J puts a line of its own before what Java says.
    said = next((line for line in lines if not line.startswith("An error occurred")), "")
    said = said.lstrip(": ") or type(error).__name__
    said = said if len(said) <= _LONGEST else said[:_LONGEST] + "…"
    return said if said.endswith((".", "…")) else said + "."
