"""Brings a server its models: at start, when they are asked for, and when the list of them changes.

It finds out what each takes before it is loaded, and loads one at a time in a thread.
"""
