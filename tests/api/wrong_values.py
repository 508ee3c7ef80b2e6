"""Wrong values of every field of a completion, with the error messages."""

from __future__ import annotations

from hypothesis import strategies as st

from fastovms.params import SamplingFields
from fastovms.request_fields import rows_of

NUMBER = ["1", True, [], {}]
INTEGER = [*NUMBER, 1.5, 5.0]
BOOLEAN = ["yes", "true", 0, 1, [], {}]
WRONG: dict[str, list[object]] = {
    **{
        name: [*row.examples("openai").refused, *(INTEGER if row.is_integer else NUMBER)]
        for name, row in rows_of(SamplingFields).items()
    },
    "prompt": [None, 5, True, {}, "", [], [""], [[]], ["a", ""], [[1], []], [1, "a"], ["a", [1]],
               [None], [True], [1.5], [-1], [257], [10**30], [[0, 999]], [["a"]], [[[1]]]],
    "max_tokens": [*INTEGER, -1, 0, 2**32, 10**30, 1e300],
    "n": [*INTEGER, 0, -1, 1025, 10**30],
    "best_of": [*INTEGER, 0, -1, 1025, 10**30],
    "stop": [5, True, {}, "", [""], ["a", ""], [1], [None], [["a"]], "x" * 1025, ["x"] * 257],
    "stream": BOOLEAN,
    "stream_options": [5, True, [], "include_usage", {"include_usage": True}],
    "echo": BOOLEAN,
    "ignore_eos": BOOLEAN,
    "include_stop_str_in_output": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "add_special_tokens": BOOLEAN,
    "model": [5, True, [], {}],
    "logit_bias": [5, [], {"5": "x"}, {"5": None}, {"5": 101}, {"5": -100.5}, {"a": 1}, {"": 1},
                   {"-1": 1}, {"257": 1}, {"05": 1}, {" 5": 1}, {"5.0": 1}, {"\u0665": 1},
                   {"9" * 5000: 1}],
    "logprobs": [*INTEGER, -1, 21, 10**30],
    "prompt_logprobs": [*INTEGER, -1, 21, 10**30],
    "suffix": [5, "tail"],
    "use_beam_search": BOOLEAN,
    "early_stopping": ["yes", 1, 0.5, [], {}],
    "num_beam_groups": [*INTEGER, 0, -1],
    "diversity_penalty": [*NUMBER, -0.1, 101],
    "allowed_token_ids": [5, "1", [], ["a"], [1.5], [True], [-1], [257], [0, 10**30]],
    "bad_words": ["a", 5, [1], [""], ["a", ""], ["x" * 1025], ["x"] * 257],
    "stop_token_ids": [5, "1", ["a"], [1.5], [True], [-1], [257], [0, 10**30]],
    "min_tokens": [*INTEGER, -1, 63, 2**32],
    "truncate_prompt_tokens": [*INTEGER, 0, -2, 65, 10**30],
    "truncation_side": [5, True, "middle", ""],
    "return_token_ids": BOOLEAN,
    "return_tokens_as_token_ids": BOOLEAN,
    "spaces_between_special_tokens": BOOLEAN,
    "num_assistant_tokens": [*INTEGER, -1, 2**32],
    "assistant_confidence_threshold": [*NUMBER, -0.1, 1.1],
    "max_ngram_size": [*INTEGER, 0, -1, 2**32],
    "priority": [*INTEGER, 2**63, -(2**63) - 1],
    "cache_salt": [5, "", "a/b", "a@b", "a\\b", "a\0b", "x" * 129],
    "request_id": [5, "", "x" * 257, "a b", "a\r\nERROR forged", "\x1b[2J", "\u00e9", "\u2028"],
    "prompt_embeds": ["AAAA"],
    "logprob_token_ids": [5, [], [1], [999], ["a"], [1.5]],
    "thinking_token_budget": [*INTEGER, -2, 2**32],
    "response_format": [5, "json", [], {}, {"type": 5}, {"type": "xml"}, {"type": "json_schema"},
                        {"type": "json_schema", "json_schema": 5},
                        {"type": "json_schema", "json_schema": {}},
                        {"type": "json_schema", "json_schema": {"schema": "{}"}},
                        {"type": "json_schema", "json_schema": {"schema": {}, "name": 5}},
                        {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
                        {"type": "json_schema", "json_schema": {"schema": {"type": "bad"}}},
                        {"type": "structural_tag"}, {"type": "structural_tag", "format": 5},
                        {"type": "structural_tag", "structures": [], "triggers": 5},
                        {"type": "regex"}, {"type": "regex", "pattern": ""},
                        {"type": "regex", "pattern": "bad"}, {"type": "grammar", "grammar": 5},
                        {"type": "const_string", "value": [1]},
                        {"type": "json_object", "schema": 5},
                        {"type": "json_object", "schema": {"type": "bad"}}],
    "structured_outputs": [5, [], {}, {"json": 5}, {"json": "bad"}, {"regex": 5}, {"regex": ""},
                           {"choice": "a"}, {"choice": []}, {"choice": [""]}, {"choice": [1]},
                           {"grammar": {}}, {"grammar": "x" * 300_000}, {"json_object": "yes"},
                           {"structural_tag": 5}, {"regex": "a", "choice": ["a"]},
                           {"json_object": True, "json": {}}, {"unknown": 1},
                           {"regex": "a", "whitespace_pattern": " "},
                           {"json": {}, "disable_additional_properties": 1},
                           {"json": {}, "disable_any_whitespace": 1}],
    "repetition_detection": [5, "on", [], {"max_pattern_size": 5}, {"max_pattern_size": -1},
                             {"max_pattern_size": "5"}, {"max_pattern_size": 1001},
                             {"min_pattern_size": 1}, {"max_pattern_size": 2, "min_count": True}],
    "stream_interval": [*INTEGER, 0, -1, 2, 10**30],
    "kv_transfer_params": [5, "on", [], {}, {"do_remote_decode": True}],
    "ec_transfer_params": [5, "on", [], {}, {"a": 1}],
    "vllm_xargs": [5, "a", [], {"a": True}, {"a": {}}, {"a": [[]]}],
    "session_id": [5, True, [], {}],
    "user": [5, True, [], {}],
    "guided_json": [5, [], "bad", {"type": "bad"}],
    "guided_json_object": BOOLEAN,
    "guided_regex": [5, "", "bad"],
    "guided_choice": ["a", [], [1], [""], ["bad"]],
    "guided_grammar": [5, "", "bad"],
    "guided_whitespace_pattern": [5, " "],
    "json_schema": [5, [], "bad", {"type": "bad"}],
    "grammar": [5, {}, "bad"],
    "regex": [5, "", "bad"],
    "ebnf": [5, "", "bad"],
}  # fmt: skip


def names(field: str, message: str, param: str | None = None) -> bool:
    return field in message and (param is None or param.startswith(field))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
