"""Stores the objects that outlive a request: responses, their items, conversations.

`StateStore` keeps them in memory, in SQLite or in PostgreSQL, on threads of its own. It knows no
HTTP and no model.
"""
