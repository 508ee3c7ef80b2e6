"""Keeps files of clients on disk: what they upload, and what batches leave for them."""
