"""Runs an engine's steps on a thread of their own, and carries requests and tokens to and from the
event loop.

`run_engine` drives any engine; permits bound how many steps wait for the loop. It knows no model.
"""
