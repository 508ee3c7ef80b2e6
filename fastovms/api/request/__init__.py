"""What the fields of a request mean: checked, and turned into what the backend takes.

It is the same for all endpoints that generate. How an answer looks, and what a chat is, is not
known.
"""
