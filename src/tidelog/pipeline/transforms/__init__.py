"""What the tables are made of: pure functions from frames to a frame, one module per subject.

A function chooses the columns it needs first and the columns of its table last, changes nothing,
and reads nothing but what it is given.
"""
