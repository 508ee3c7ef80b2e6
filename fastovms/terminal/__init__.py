"""Chats with a server in a terminal, or by pipes: `fastovms chat`."""
