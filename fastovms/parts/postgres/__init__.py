"""Stores the state in PostgreSQL, shared by any number of servers.

Connections keep no session state between transactions, so PgBouncer can be used in transaction
mode.
"""
