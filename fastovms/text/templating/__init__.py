"""Finds chat templates in a model's files, checks them, and renders them in a sandbox.

`ChatTemplate` turns messages and tools into a prompt. It does not know tokens, or what a model
answers.
"""
