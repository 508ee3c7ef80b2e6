"""Beam search: one request whose samples are the best of many that grow together.

It scores and forks sequences of the scheduler; how a token is drawn otherwise is not its
matter.
"""
