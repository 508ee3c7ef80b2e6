"""Runs the server as replicas of Ray Serve on a Ray cluster."""
