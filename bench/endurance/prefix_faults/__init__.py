"""Disk faults and kill -9 for the prefix cache on disk, which must never change a text."""
