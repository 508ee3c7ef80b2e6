"""Keeps the state in one SQLite file, or in memory, for one process.

Where the file cannot be had, the state is in memory until it can.
"""
