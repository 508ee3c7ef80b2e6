"""The whole server with an engine that computes nothing, to measure the cost of requests."""
