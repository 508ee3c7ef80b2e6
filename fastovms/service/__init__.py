"""Runs the server process: startup, supervision, signals, logs and shutdown.

Monitors the server, and reports to systemd, logs and metrics. Independent of the content of
requests.
"""
