"""Helpers that benchmarks share: processes, properties, reports and loads."""
