"""Declares the configuration, frozen, a section a file: each default stands here alone."""
