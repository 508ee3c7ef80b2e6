"""Keeps the state in PostgreSQL, for any number of servers that share it.

No session of the database has to remember anything between two transactions, so that PgBouncer may
stand between, in transaction mode.
"""
