"""Answers `/files`: uploads that are written to the disk as they come, and what is kept of them."""
