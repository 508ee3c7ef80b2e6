"""Runs the server process: start, supervision, signals, logs, end.

It monitors the server and reports to systemd, logs and metrics. It does not depend on the content
of requests.
"""
