"""The probe: a surface for tests and benches, and the worked example of the four files.

It does nothing for users. It puts, repeats, conflicts, is refused, prunes and subscribes, over HTTP
and WebSocket, through the same committer, tail and fan-out as the real surfaces. `python -m
support.probe serve` is `tidelog serve` with this surface added; the package has nothing of it.

Read `wire` (what is said), `rules` (what is decided), `session` (one connection's state machine)
and `service` (the only file that touches both log and connections), in this order.
"""
