"""Serves one client's connection: its protocol, deadlines and writers, fairly beside the others.

It drives parsing, gates and handlers, and keeps to back-pressure. It knows no listener and no API.
"""
