"""Declares what requests may ask for: their bounds, their media and their chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """What one request may ask for, beyond the limits of the model and of the contracts.

    Attributes:
        max_prompts: prompts in one completions request.
        max_choices: samples of all its prompts together.
        max_stop_strings: stop strings, where the contract sets no lower limit.
        max_stop_length: characters of one stop string.
        max_logprobs: top log probabilities of one token; -1 = as many as the vocabulary has.
        max_total_logprobs: log probabilities in the whole answer to one request, each about a
            hundred bytes while the answer is made.
        max_grammar_length: characters of a schema, an expression or other grammar.
        max_pending_chars: text that waits for a client which does not read its stream.
        max_background_tokens: tokens of a response in the background whose request sets no limit;
            0 = as many as the context holds.
        per_request_metrics: answers of one sample tell how long it took.
    """

    max_prompts: int = 1024
    max_choices: int = 1024
    max_stop_strings: int = 256
    max_stop_length: int = 1024
    max_logprobs: int = 20
    max_total_logprobs: int = 5_000_000
    max_grammar_length: int = 256 * 1024
    max_pending_chars: int = 1024 * 1024
    max_background_tokens: int = 8192
    per_request_metrics: bool = False


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """The images that a request may bring.

    Attributes:
        allowed_media_domains: hosts of images, separated by commas; "all" = any, None = none.
        allowed_local_media_path: images are read from files below it; None = from none.
        allow_media_redirects: whether to follow the redirects of those hosts, to those hosts.
        allow_private_media: whether to fetch from addresses that are not public.
        media_timeout: seconds for fetching an image.
        max_images: how many one request may have.
        max_image_bytes: the size of one, encoded.
        max_image_pixels: the pixels of one, by its header.
        shrink_images_to: the pixels that a model gets of an image; a larger one is shrunk. All
            images of a request have twice as many together.
        max_image_memory: bytes of all images that are decoded or wait for a model.
    """

    allowed_media_domains: str | None = None
    allowed_local_media_path: Path | None = None
    allow_media_redirects: bool = False
    allow_private_media: bool = False
    media_timeout: float = 10.0
    max_images: int = 16
    max_image_bytes: int = 20 * 1024 * 1024
    max_image_pixels: int = 32 * 1024 * 1024
    shrink_images_to: int = 1024 * 1024
    max_image_memory: int = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """How messages become prompts, and answers messages.

    Attributes:
        chat_template: Jinja file in place of the model's templates, or such a template itself.
        chat_template_content_format: how templates get the content of messages: "string", "openai"
            (a list of parts), "auto" = as they read it.
        default_chat_template_kwargs: variables of templates that a request does not set itself.
        trust_request_chat_template: a request may bring a template of its own.
        tool_parser, reasoning_parser: names of the formats in which the model writes calls and
            thoughts; "auto" = as its template says, "none" = it writes none.
        response_role: the role of the messages that are generated.
    """

    chat_template: Path | str | None = None
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    response_role: str = "assistant"
