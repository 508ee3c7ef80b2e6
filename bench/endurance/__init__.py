"""Endurance tests: what attacks, faults, crashes and long load do to a real server process.

They are bounded in count and time, seeded, and print figures with the limits that these must hold.
"""
