"""The Responses API: `/responses` and `/conversations`, whole, streamed and in the background.

In reading order: `routes`; `create` reads a request into a `ResponsePlan`, with its `history`;
`run` executes a response to its end, for a client that waits (`ForegroundRun`) or without a client
(`background`). `output` builds items and events; `events` stores those of a background response,
from which `resumption` continues it after a restart. `conversations` returns, cancels and deletes
what is stored in `fastovms.state`.
"""
