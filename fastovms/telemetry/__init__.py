"""Logs, Prometheus metrics and traces for operators."""
