"""Answers `/`: a page in the browser that chats with the models and shows how the engine fares."""
