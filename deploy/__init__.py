"""Configurations for several servers behind one address."""
