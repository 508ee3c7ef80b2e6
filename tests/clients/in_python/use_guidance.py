"""Uses guidance's models for vLLM and SGLang, which send a grammar with each text to generate."""

from __future__ import annotations

import json

from guidance import assistant, gen, select, user
from guidance import json as gen_json
from guidance.models.experimental import SglangModel, VLLMModel

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(url: str, name: str) -> None:
    for kind in (VLLMModel, SglangModel):
        model = kind(name, base_url=url, api_key="none", echo=False)
        with user():
            model += "Yes or no, a number, and a person?"
        with assistant():
            model += select(["yes", "no"], name="choice")
        with assistant():
            model += gen("number", regex="[0-9]{2,4}")
        with assistant():
            model += gen_json("person", schema=SCHEMA)
        assert model["choice"] in ("yes", "no")
        assert model["number"].isdigit()
        assert set(json.loads(model["person"])) == {"name", "age"}
