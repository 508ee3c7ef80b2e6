"""Keeps what outlives a request: responses, their items, conversations.

`StateStore` keeps them in memory or in SQLite, on a thread of its own. It knows no HTTP and no
model.
"""
