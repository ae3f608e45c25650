"""The dialect of npm's `insieme` 2.1, translated to and from the protocol's own (sync 21).

Only words are translated here. What is allowed, valid, stored and delivered is decided where it is
decided for every other client, so a partition may be shared by clients of both.
"""
