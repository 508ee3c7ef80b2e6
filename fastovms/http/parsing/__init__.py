"""Makes requests of bytes, and checks them: heads, framing and the faults of both, by RFC 9112.

Nothing here reads or writes a socket.
"""
