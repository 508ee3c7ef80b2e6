"""Chats in a conversation that the server stores: each turn sends only the new message."""

import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))

conversation = client.conversations.create()
for question in ("My name is Alice.", "What is 7 + 5?", "What is my name?"):
    response = client.responses.create(
        model="demo_model", input=question, conversation=conversation.id, temperature=0
    )
    print(f"> {question}\n{response.output_text}")

items = client.conversations.items.list(conversation.id)
print(f"The conversation has {len(list(items))} items.")
client.conversations.delete(conversation.id)
