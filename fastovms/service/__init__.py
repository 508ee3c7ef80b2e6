"""Runs the server process: start, supervision, signals, logs, end.

It watches what runs and says so to systemd, logs and metrics. It has no knowledge of the content of
requests.
"""
