"""Asks the operating system: for memory, threads, locks, directories and what a container has."""
