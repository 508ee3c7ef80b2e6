"""The optional parts: what a plain chat does not use. Each is one folder or file."""
