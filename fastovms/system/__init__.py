"""Access to the operating system: memory, threads, locks, directories and container limits."""
