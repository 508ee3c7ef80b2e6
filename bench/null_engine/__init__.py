"""The server, and its peer, around an engine whose tokens cost nothing; and what requests cost
there."""
