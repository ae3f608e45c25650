"""The report: one page about the lake that needs nothing but a browser. No Spark, no JVM."""

from tidelog.pipeline.report.page import write_report

__all__ = ["write_report"]
