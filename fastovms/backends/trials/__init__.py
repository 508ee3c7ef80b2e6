"""Where what a client has written meets native compilers first: in processes of their own, fairly
by client, for a bounded time."""
