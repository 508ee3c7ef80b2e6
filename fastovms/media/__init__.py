"""Audio of requests."""
