"""Chat templates: found in a model's files, checked, and rendered in a sandbox.

`ChatTemplate` turns messages and tools into a prompt. It does not know tokens, or what a model
answers.
"""
