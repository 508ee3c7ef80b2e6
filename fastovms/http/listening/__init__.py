"""Accepts connections: addresses, sockets of systemd, TLS and its handshakes.

It hands connections to the protocol and reads no request.
"""
