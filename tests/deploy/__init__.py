"""Tests of how the server is deployed."""
