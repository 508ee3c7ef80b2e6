"""Tokens to text and back. Pure: knows neither HTTP nor the engine."""
