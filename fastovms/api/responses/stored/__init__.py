"""Reads and writes what is kept of responses and conversations: records, histories, event logs,
pages.

It uses the store by its Protocol, and runs no model.
"""
