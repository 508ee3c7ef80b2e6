"""The Responses API: `/responses` and `/conversations`, whole, streamed and in the background.

`create` makes responses; `response_by_id` gets, streams again, cancels and deletes those that are
stored; `conversations` stores items separately. `fastovms.state` decides where responses are
stored.
"""
