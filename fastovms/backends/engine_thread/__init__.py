"""The thread on which an engine makes its steps, and its way to and from the event loop.

`EngineLoop` drives any engine; permits bound how many requests wait. It knows no model.
"""
