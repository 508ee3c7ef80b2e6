"""Stores the state in one SQLite file, or in memory, for one process.

If the file is not available, the state is kept in memory until it is.
"""
