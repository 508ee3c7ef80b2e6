"""HTTP client of the server, and the chat in a terminal."""
