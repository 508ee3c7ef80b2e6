"""Uses outlines over OpenAI's client, as OpenAI's, vLLM's and SGLang's server: schemas, choices,
expressions, grammars. SGLang's grammars are in EBNF."""

from __future__ import annotations

import json
import re
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from person import Person


def main(url: str, name: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for make in (outlines.from_openai, outlines.from_vllm, outlines.from_sglang):
            model = make(client, name)
            assert model("Hello", max_tokens=20)
            made = model("Who is it?", Person, max_tokens=400, temperature=1.3)
            assert set(json.loads(made)) == {"name", "age"}
            assert "".join(model.stream("Hello", max_tokens=20, temperature=0)) == model(
                "Hello", max_tokens=20, temperature=0
            )
        lark = 'start: "sum" WS NUMBER\nWS: " "\nNUMBER: /[0-9]{1,3}/\n'
        ebnf = 'root ::= "sum " [0-9] [0-9]? [0-9]?'
        for make, grammar in ((outlines.from_vllm, lark), (outlines.from_sglang, ebnf)):
            model = make(client, name)
            assert model("Glad?", Literal["yes", "no"], max_tokens=300) in ("yes", "no")
            assert re.fullmatch(
                "[a-c]{3}-[0-9]{2}", model("Which?", Regex("[a-c]{3}-[0-9]{2}"), max_tokens=300)
            )
            assert re.fullmatch("sum [0-9]{1,3}", model("What?", CFG(grammar), max_tokens=300))
