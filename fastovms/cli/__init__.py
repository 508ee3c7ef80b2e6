"""Reads the command line: flags, environment variables and the commands that work on files.

It turns what the operator writes into the frozen configuration and starts the server or another
command. It knows nothing of requests, and holds no default of its own: those are in `config`.
"""
