"""The life of the server process: start, supervision, signals, logs, end."""
