"""Uses instructor over OpenAI's client: its modes, lists, and objects that come in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: int
    mood: Literal["glad", "sad"]


def main(url: str, name: str) -> None:
    messages = [{"role": "user", "content": "Who is it?"}]
    modes = (
        instructor.Mode.TOOLS,
        instructor.Mode.TOOLS_STRICT,
        instructor.Mode.JSON_SCHEMA,
    )
    for mode in modes:
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            made = instructor.from_openai(client, mode=mode).chat.completions
            for seed in range(4):
                person = made.create(
                    model=name,
                    messages=messages,
                    response_model=Person,
                    temperature=1.3,
                    seed=seed,
                    max_tokens=400,
                    max_retries=1,
                )
                assert person.mood in ("glad", "sad")
            parts = list(
                made.create_partial(
                    model=name, messages=messages, response_model=Person, max_tokens=400
                )
            )
            assert parts[-1].age is not None
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        many = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA).chat.completions
        people = many.create(
            model=name,
            messages=messages,
            response_model=Iterable[Person],
            max_tokens=1500,
            max_retries=1,
            stream=True,
        )
        assert all(isinstance(person, Person) for person in people)
