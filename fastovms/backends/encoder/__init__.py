"""Runs models that make vectors and scores of texts, on a thread of their own.

It knows token ids, no texts: batches of about equal lengths, cut into slices between which engines
of other models compute.
"""
