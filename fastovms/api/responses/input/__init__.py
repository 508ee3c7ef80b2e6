"""What a request of the Responses API brings: its fields, and items that become messages.

It neither runs nor keeps anything.
"""
