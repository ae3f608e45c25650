"""The seam between fronts and the owner of the log: messages in order, both ways.

A front has connections, the owner has the log. What they say to each other are the messages that a
surface declares, and nothing else of either is known to the other. So both may be in one process,
where the link is a function call, or in two.
"""
