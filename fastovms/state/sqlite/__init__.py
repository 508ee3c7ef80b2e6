"""Stores the state in one SQLite file, or in memory, for one process.

If the file is not available, operations fail, or the state is kept in memory; see `open_location`.
"""
