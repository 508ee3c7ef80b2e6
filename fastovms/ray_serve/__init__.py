"""Runs the server in replicas of Ray Serve, for those who have a Ray cluster."""
