"""Reports to operators: logs, Prometheus metrics and traces."""
