"""Checks the fields of a request, and turns them into what the backend takes.

It is the same for all endpoints that generate. How an answer looks, and what a chat is, is not
known.
"""
