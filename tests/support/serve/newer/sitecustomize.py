"""Fronts of Python processes with this folder on their path are of a newer version of tidelog."""

import sys

import tidelog

if "tidelog.serve.front" in sys.orig_argv:
    tidelog.__version__ = "99.0"
