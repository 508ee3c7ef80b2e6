"""Decodes a client's images in processes that may die.

What comes back are pixels in shared memory. It fetches nothing and knows no model.
"""
