"""Where what a client has written meets native compilers first: processes that may die.

Trials are fair by client and bounded in time (`GuardedGrammars`). What passed is compiled again
by the server itself; answers are not made here.
"""
