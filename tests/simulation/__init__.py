"""The whole server in one deterministic process: virtual time, seeded chance, injected faults."""
