"""The one schema that every store has, whichever surfaces are served from it.

A log is opened, backed up, compacted and verified with the tables of all built-in surfaces. The
folder `migrations` beside this file has the two that changed tables of several at once; a new one
belongs to one surface, or to the store.
"""

from tidelog.channels.schema import EXTENSION as CHANNELS
from tidelog.mesh.schema import EXTENSION as MESH
from tidelog.store.schema import Schema, packaged
from tidelog.sync.schema import EXTENSION as SYNC

SCHEMA = Schema((CHANNELS, MESH, SYNC, packaged("tidelog.config")))
