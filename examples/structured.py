"""Requests an answer as a pydantic model; the server enforces its JSON Schema with a grammar."""

import os

from openai import OpenAI
from pydantic import BaseModel

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))


class Person(BaseModel):
    name: str
    age: int
    city: str


completion = client.chat.completions.parse(
    model="demo_model",
    messages=[
        {"role": "user", "content": "Anna is 31 years old and lives in Rome. Answer as JSON."}
    ],
    response_format=Person,
    temperature=0,
)
person = completion.choices[0].message.parsed
print(f"{person.name}, {person.age}, from {person.city}")
