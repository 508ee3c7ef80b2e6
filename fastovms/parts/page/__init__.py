"""The web page at `/`, which chats with the models and shows the state of the engine."""
