"""Reads a request of the Responses API: its fields, and items that become messages.

It neither runs nor keeps anything.
"""
