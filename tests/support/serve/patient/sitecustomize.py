"""Servers of Python processes with this folder on their path let a process stand still for long.

A test that stops the others, so that whoever connects gets one front, takes as long as its machine.
"""

from tidelog.base import supervisor
from tidelog.link import bounds

bounds.MOST_SILENT_BEATS = supervisor.MOST_SILENT_LOOKS = 600
