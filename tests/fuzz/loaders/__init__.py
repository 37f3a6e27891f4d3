"""The Python loaders, a file for each format, so that a harness imports no more than it needs.

Each has a CHECK: it takes any bytes and ends normally or in one line of refusal. It runs in a scratch folder of its own
and writes its files there.
"""
