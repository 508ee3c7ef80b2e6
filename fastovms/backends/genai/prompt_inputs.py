"""Converts prompts, with their images, into the arguments of OpenVINO GenAI's pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from fastovms.errors import InvalidField
from fastovms.params import GenerationRequest, Image


class PromptReader:
    """Reads prompts for a pipeline over tokens, or for one over texts with images: that one
    tokenizes texts itself, and puts the special tokens first that begin every text.

    Args:
        tokenizer: an `openvino_genai.Tokenizer`.
    """

    def __init__(self, tokenizer: Any, *, takes_images: bool) -> None:
        self._tokenizer = tokenizer
        self._takes_images = takes_images
        self._start = self._encode("") if takes_images else []
        self._start_text = self._decode(self._start) if self._start else ""

    def arguments(self, request: GenerationRequest) -> tuple[Any, ...]:
        """Returns what `add_request` takes between id and configuration.

        Raises:
            InvalidField: the prompt is of tokens that no text has.
        """
        if not self._takes_images:
            return (ov.Tensor(np.array([request.prompt_token_ids], np.int64)),)
        if request.prompt is None:
            return self._text_of(request), []
        text = request.prompt.text
        if self._start_text:
            text = text.removeprefix(self._start_text)
        return text, [_tensor(image) for image in request.prompt.images]

    def _text_of(self, request: GenerationRequest) -> str:
        token_ids = list(request.prompt_token_ids)
        if token_ids[: len(self._start)] == self._start:
            text = self._decode(token_ids[len(self._start) :])
            if self._encode(text) == token_ids:
                return text
        raise InvalidField(
            "prompt must be a text for this model: it takes images, and reads these tokens as "
            "others",
            param="prompt",
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).input_ids.data[0].tolist()
        return ids

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))


def _tensor(image: Image) -> ov.Tensor:
    return ov.Tensor(np.ascontiguousarray(image[np.newaxis]))
