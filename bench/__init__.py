"""Benchmarks of the server and what they need; run as modules from the repository's root."""
