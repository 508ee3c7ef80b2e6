"""Reads the command line: flags, environment variables and the commands that work on files.

It builds the configuration and starts the server or another command. Defaults are declared in
`config`.
"""
