"""Measures several replicas as one server: behind Envoy, with their state in PostgreSQL, on Ray."""
