"""Answers operators and monitors: health, status, lists of models, servables.

It generates nothing, and answers while models are still loading.
"""
