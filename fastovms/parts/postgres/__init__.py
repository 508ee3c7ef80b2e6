"""Stores the state in PostgreSQL, shared by any number of servers.

Sessions have no state between transactions, so PgBouncer can be used in transaction mode.
"""
