"""Copies states: from one database to another, into a file that any can read, and back.

Rows are copied one page after the other, with the checksums that they have.
"""
