"""A job of the pipeline in a process of its own that dies at a fault point.

The process has no JVM of its own but uses that of the tests: to start one takes longer than the
job. What dies is the one that commits; what the JVM still has under way for it goes into files that
nobody commits. `tests/crash/test_pipeline_kill.py` kills JVMs too.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.base.faultpoint import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 400
"""Some ten are enough, but the machine may be very busy."""


def run_killed(spark: "SparkSession", code: str, *arguments: str, fault: str) -> None:
    """Run Python code with a fault armed, and wait until the process has killed itself.

    In it, `attached_session()` is a session in the JVM of `spark`.
    """
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    reach = {
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **reach, VARIABLE: fault},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            ended = process.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        assert ended == -signal.SIGKILL, output.read()[-2000:].decode()


def attached_session() -> "SparkSession":
    """The session of the process that started this one, in its JVM."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    java = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    return SparkSession(context)
