"""Optional parts of the server, which a plain chat does not use. Each part is one folder or
file."""
