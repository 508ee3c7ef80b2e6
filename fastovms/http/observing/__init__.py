"""Tells of requests when they are over: the access log and the metrics of the HTTP side.

Both are observers of exchanges. They change nothing about a request.
"""
