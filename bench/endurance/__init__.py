"""Endurance tests: attacks, faults, crashes and long load against real server processes.

Their number of requests and their duration are bounded, and their random choices are seeded. They
print figures with the limits that the figures must hold.
"""
