"""Reads what a request says about tokens: how many, which ones, and what is told of them."""
