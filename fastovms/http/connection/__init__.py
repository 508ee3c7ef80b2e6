"""One client's connection: its protocol, deadlines, writers, and its turn among the others.

It drives parsing, gates and handlers, and keeps to back-pressure. It knows no listener and no
API.
"""
