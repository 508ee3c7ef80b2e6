"""What is kept of responses and conversations: records, histories, event logs, pages.

It reads and writes the store by its Protocol, and runs no model.
"""
