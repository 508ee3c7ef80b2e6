"""An HTTP/1.1 server on asyncio transports, from listening sockets to handlers and back.

`HttpServer` serves the routes of a `Router`, after checks that every request must pass. The package
does not depend on models or JSON.
"""
