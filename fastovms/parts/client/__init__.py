"""What talks to a server as its client: requests over HTTP, and the chat in a terminal."""
