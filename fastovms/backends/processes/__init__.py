"""What child processes need: start and end with their parent, bounded resources, deep stacks.

It does not know what they are for.
"""
