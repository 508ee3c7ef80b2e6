"""Stores the objects that outlive a request: responses, their items, conversations.

`StateStore` keeps them in memory, in SQLite or in PostgreSQL, accessed by separate threads. The
package does not depend on HTTP or models.
"""
