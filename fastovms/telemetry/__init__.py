"""Tells operators what the server does: logs, Prometheus metrics and traces."""
