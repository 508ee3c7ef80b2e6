"""The command line: flags, environment variables, and commands that work on files.

Builds the configuration and starts the server or another command. Defaults are declared in `config`
and `server_config`.
"""
