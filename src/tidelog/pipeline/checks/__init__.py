"""Checks: does what the server stored and answers agree with the log, and with itself?"""
