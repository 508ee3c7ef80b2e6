"""An object that models are asked to write."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: Annotated[str, Field(max_length=20)]
    age: int
