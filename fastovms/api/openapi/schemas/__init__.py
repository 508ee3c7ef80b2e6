"""Describes what is sent and answered in JSON Schema, by families of endpoints."""
