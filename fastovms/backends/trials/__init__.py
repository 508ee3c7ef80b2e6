"""Tries what clients have written on native compilers first in processes that may die.

Trials are fair by client and bounded in time (`GuardedGrammars`). What passed is compiled again by
the server itself; answers are not made here.
"""
