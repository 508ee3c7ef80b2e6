"""The Responses API: `/responses` and `/conversations`, whole, streamed and in the background.

`create` makes responses; `conversations` gets, streams again, cancels and deletes those that are
kept, and stores items separately. `fastovms.state` decides where they are kept.
"""
