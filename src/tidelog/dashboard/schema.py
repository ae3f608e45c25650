"""What the dashboard adds to a store: its reads, in the folder `sql` beside this file."""

from tidelog.store.schema import packaged

EXTENSION = packaged("tidelog.dashboard")
