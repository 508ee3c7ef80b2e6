"""Declares how models of embeddings and rerankers are run: a section of the configuration, as those
of `config` are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """How texts become vectors and scores.

    Attributes:
        task: what the model does, "text_generation", "embeddings" or "rerank"; "auto" = as its
            files say.
        pooling: "cls", "mean" or "last"; "auto" = as its files say, else "cls", or "last" of a
            decoder.
        normalize: give vectors the length 1.
        truncate: cut texts that are too long for the model, rather than refuse them.
        query_instruction, document_instruction: what is put before queries and documents.
        max_inputs: texts of one request for embeddings or scores.
        max_allowed_chunks: documents of one request to rerank, each of which counts as many times
            as it is cut to fit the model.
        max_batch_tokens: tokens that are computed together.
    """

    task: str = "auto"
    pooling: str = "auto"
    normalize: bool = True
    truncate: bool = False
    query_instruction: str = ""
    document_instruction: str = ""
    max_inputs: int = 2048
    max_allowed_chunks: int = 10_000
    max_batch_tokens: int = 1024
