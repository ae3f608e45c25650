"""Errors that came through Spark, in words of ours."""

import pytest
from pyspark.errors import PySparkException

from tidelog.base.errors import StoreUnavailable, TidelogError
from tidelog.pipeline.source.store_address import LogReplaced
from tidelog.pipeline.spark.failure import SparkFailed, explained

TRACEBACK = """An error occurred while calling o42.load.
: org.apache.spark.SparkException: Job aborted due to stage failure.
Traceback (most recent call last):
  File "source.py", line 1, in read
tidelog.base.errors.StoreUnavailable: the first cause
During handling of the above exception, another exception occurred:
{last}
	at java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("tidelog.pipeline.source.store_address.LogReplaced: it is another log", LogReplaced),
        ("tidelog.base.errors.StoreUnavailable: it is another log", StoreUnavailable),
        ("tidelog.pipeline.checks.served.ServerUnreachable: it is another log", TidelogError),
    ],
)
def test_an_error_of_ours_is_found_in_what_java_says(last: str, kind: type[TidelogError]) -> None:
    """The last error of ours in the text is the one that is told."""
    meant = explained(PySparkException(message=TRACEBACK.format(last=last)))
    assert type(meant) is kind
    assert str(meant) == "it is another log"


def test_an_error_of_sparks_is_one_line() -> None:
    """What Java says first, without its frames, and not endless."""
    text = "An error occurred while calling o1.x.\n: java.lang.Error: no room\n\tat a.b(C:1)\n"
    meant = explained(PySparkException(message=text))
    assert isinstance(meant, SparkFailed)
    assert str(meant).startswith("Spark failed: java.lang.Error: no room. ")
    worker = "An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    raised = explained(PySparkException(message=worker + '  File "x"\nKeyError: 7\n\tat a.b(C:1)'))
    assert str(raised).startswith("Spark failed: KeyError: 7. ")
    long = explained(PySparkException(message="x" * 10_000))
    assert len(str(long)) < 700
    assert "\n" not in str(long)


def test_an_error_of_the_system_names_the_file() -> None:
    """A lake that may not be written is no defect of ours."""
    meant = explained(PermissionError(13, "Permission denied", "/lake/_lock"))
    assert str(meant) == "Permission denied: /lake/_lock"


def test_a_defect_stays_one() -> None:
    """What nobody expected keeps its traceback; what is ours stays as it is."""
    assert explained(KeyError("x")) is None
    known = TidelogError("as it is")
    assert explained(known) is known
