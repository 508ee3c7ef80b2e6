"""Runs the server in replicas of Ray Serve, on a Ray cluster."""
