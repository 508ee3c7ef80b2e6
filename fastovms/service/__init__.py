"""Runs the server process: start, supervision, signals, logs, end.

It watches what runs and says so to systemd, logs and metrics. What a request is about, it does not
know.
"""
