"""A client of the server: requests over HTTP, and the chat in a terminal."""
