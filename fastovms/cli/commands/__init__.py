"""Runs the commands beside `serve` and `run-batch`: on models, caches, states and other servers."""
