"""Checks: does what the server stored and serves agree with the log, and with itself?"""
