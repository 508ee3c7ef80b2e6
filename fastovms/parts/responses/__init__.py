"""The Responses API: `/responses` and `/conversations`, whole, streamed and in the background.

In reading order: `routes`; `create` reads a request into a `ResponsePlan`, with its `history`;
`run` has the one way of a response from there to its end, for a client that waits
(`ForegroundRun`) or for none (`background`). `output` makes items and events; `events` keeps those
of a background response, from which `resumption` continues it after a restart. `conversations`
gets, cancels and deletes what is kept, in `fastovms.state`.
"""
