"""The server around an engine whose tokens cost nothing, and what requests cost there."""
