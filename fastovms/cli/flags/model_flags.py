"""Lists the flags about models: where they come from, how they are run, and what they are given."""

from __future__ import annotations

from typing import Final

from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import (
    choice,
    duration,
    integer,
    json_object,
    model_length,
    number,
    path,
    show_duration,
    show_size,
    size,
    some_duration,
    template,
    text,
)
from fastovms.config.engine_config import DEFAULT_TOKEN_BUDGET
from fastovms.config.settings import CHAT, ENCODER, ENGINE, FILES, MEDIA, REPOSITORY, RESIDENCY
from fastovms.engine.model.machine.cache_precision import CACHE_PRECISIONS
from fastovms.text.reasoning import REASONING_FORMAT_ALIASES, REASONING_FORMATS
from fastovms.text.tools import TOOL_FORMAT_ALIASES, TOOL_FORMATS

_MAX_CACHE_GB: Final = 1_000_000
"""More than any machine has."""

_MAX_INDEX_TOKENS: Final = 64 * 1024 * 1024
"""They take 3 GB."""

_TASK_ALIASES: Final = {
    "generate": "text_generation",
    "embed": "embeddings",
    "embedding": "embeddings",
    "score": "rerank",
}
"""vLLM's names for tasks."""

REPOSITORY_FLAGS: Final = (
    Flag("--model-repository-path", REPOSITORY.path, "DIR", path,
         "where models of a hub are kept, in ORG/NAME (default: fastovms/models in the user's "
         "cache directory)", shows_default=False),
    Flag("--revision", REPOSITORY.revision, "REVISION", text,
         "branch, tag or commit to pull; where another one is there already, --overwrite-models "
         "takes its place (default: what is there, else the main branch)", shows_default=False),
    Flag("--overwrite-models", REPOSITORY.overwrite, "", None,
         "pull models again that are there"),
)  # fmt: skip

RESIDENCY_FLAGS: Final = (
    Flag("--max-loaded-models", RESIDENCY.max_loaded_models, "N", integer(1),
         "models in memory at the same time: each is loaded when it is first asked for, and the "
         "idle one that was used least recently makes room (default: all are loaded at start)",
         shows_default=False),
    Flag("--model-memory", RESIDENCY.model_memory, "SIZE", size,
         "memory for the weights and KV caches of all models together, with the same effect "
         "(default: no limit)", shows_default=False),
    Flag("--idle-unload", RESIDENCY.idle_unload, "TIME", duration,
         "unload a model that nobody has used for so long, such as 90s, 15m or 2h; 0 = never",
         show_duration),
    Flag("--model-wait-timeout", RESIDENCY.wait_timeout, "TIME", some_duration,
         "how long a request waits for its model to be loaded; 503 beyond it", show_duration),
    Flag("--file-system-poll-wait-seconds", RESIDENCY.poll_interval, "SECONDS", number("seconds"),
         "between two looks at the file of --config-path, whose changes are followed; 0 = none"),
)  # fmt: skip

ENGINE_FLAGS: Final = (
    Flag("--device", ENGINE.device, "DEVICE", text, "OpenVINO device"),
    Flag("--backend", ENGINE.backend, "NAME", choice("auto", "paged", "genai"),
         "what runs the model: paged = the engine of this server, genai = the pipeline of "
         "openvino_genai, auto = paged where it can"),
    Flag("--plugin-config", ENGINE.plugin_config, "JSON", json_object,
         "OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
         shows_default=False),
    Flag("--cache-size", ENGINE.cache_size, "GB", number("GB", high=_MAX_CACHE_GB),
         "memory for the KV cache, used as it fills; 0 = half of the memory that is free at start"),
    Flag("--max-model-len", ENGINE.max_model_len, "TOKENS", model_length,
         "context length to offer, such as 8192 or 8k; auto = the model's",
         shows_default=False),
    Flag("--generation-config", FILES.generation_config, "WHENCE", path,
         "where the defaults of requests come from: auto = the model's generation_config.json, "
         "vllm = no file, or a directory or file in its place", shows_default=False),
    Flag("--kv-cache-precision", ENGINE.plugin_config, "PRECISION",
         choice(*CACHE_PRECISIONS),
         "of the KV cache: u4, u8, f16, bf16 or f32 (default: the fastest that the device has, "
         "never u4, which changes texts)",
         shows_default=False, member="KV_CACHE_PRECISION"),
    Flag("--precision", ENGINE.precision, "PRECISION", choice("auto", "exact"),
         "auto = the fastest; exact = f32 throughout, and nothing else that runs changes a text"),
    Flag("--max-num-seqs", ENGINE.max_num_seqs, "N", integer(1),
         "sequences that run at the same time; more wait"),
    Flag("--max-num-batched-tokens", ENGINE.max_num_batched_tokens, "TOKENS", integer(1),
         "tokens computed in one step, over all sequences (default: what was measured on this "
         f"machine, else {DEFAULT_TOKEN_BUDGET})", shows_default=False),
    Flag("--tune", ENGINE.tune, "", None,
         "measure, while nobody asks, which precisions and token budget are the fastest, and "
         "start by what was measured"),
    Flag("--max-queued-requests", ENGINE.max_num_queued_requests, "N", integer(1),
         "samples that may wait to run; more are refused with 429"),
    Flag("--enable-prefix-caching", ENGINE.enable_prefix_caching, "", None,
         "reuse what is computed of equal prompt beginnings"),
    Flag("--enable-prompt-lookup", ENGINE.enable_prompt_lookup, "", None,
         "guess tokens from earlier text (default: where that pays; with the genai backend, where "
         "it is all or nothing, no)", shows_default=False),
    Flag("--suffix-index-tokens", ENGINE.suffix_index_tokens, "N", integer(0, _MAX_INDEX_TOKENS),
         "recent prompts and answers, in tokens, that drafts are guessed from, per API key and "
         "cache_salt; 0 = only a sequence's own text"),
    Flag("--draft-model", ENGINE.draft_model, "DIR", path,
         "directory of a smaller model with the same vocabulary, which guesses tokens where that "
         "pays (default: none)", shows_default=False),
    Flag("--cache-dir", ENGINE.cache_dir, "DIR", str,
         "directory for what makes the next start faster; \"\" = none (default: fastovms in "
         "XDG_CACHE_HOME or ~/.cache)", shows_default=False),
)  # fmt: skip

CHAT_FLAGS: Final = (
    Flag("--chat-template", CHAT.chat_template, "FILE", template,
         "file with a Jinja template in place of the model's, or the template itself",
         shows_default=False),
    Flag("--chat-template-content-format", CHAT.chat_template_content_format, "FORM",
         choice("auto", "string", "openai"),
         "the content of messages as templates get it: string, openai (a list of parts), or auto = "
         "as they read it"),
    Flag("--default-chat-template-kwargs", CHAT.default_chat_template_kwargs, "JSON",
         json_object,
         "variables of the template that a request does not set, such as "
         "'{\"enable_thinking\": false}'", shows_default=False),
    Flag("--trust-request-chat-template", CHAT.trust_request_chat_template, "", None,
         "a request may bring a template of its own"),
    Flag("--tool-parser", CHAT.tool_parser, "NAME",
         choice("auto", "none", *TOOL_FORMATS, aliases=TOOL_FORMAT_ALIASES),
         f"format of the model's tool calls: {', '.join(TOOL_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--reasoning-parser", CHAT.reasoning_parser, "NAME",
         choice("auto", "none", *REASONING_FORMATS, aliases=REASONING_FORMAT_ALIASES),
         f"format of the model's thoughts: {', '.join(REASONING_FORMATS)}, none, or auto = as its "
         "template says"),
    Flag("--response-role", CHAT.response_role, "ROLE", text,
         "role of the messages that are generated"),
)  # fmt: skip

ENCODER_FLAGS: Final = (
    Flag("--task", ENCODER.task, "TASK",
         choice("auto", "text_generation", "embeddings", "rerank", aliases=_TASK_ALIASES),
         "what the model does: text_generation, embeddings, rerank, or auto = as its files say, of "
         "which rerankers that are decoders look like models that generate"),
    Flag("--pooling", ENCODER.pooling, "POOLING", choice("auto", "cls", "mean", "last"),
         "how the states of a text's tokens become its vector: cls, mean, last, or auto = as "
         "1_Pooling/config.json says, else cls, or last of a decoder"),
    Flag("--normalize", ENCODER.normalize, "", None, "give vectors the length 1"),
    Flag("--truncate", ENCODER.truncate, "", None,
         "cut texts that are too long for the model, rather than refuse them"),
    Flag("--query-instruction", ENCODER.query_instruction, "TEXT", str,
         "what is put before queries (default: nothing)", shows_default=False),
    Flag("--document-instruction", ENCODER.document_instruction, "TEXT", str,
         "what is put before documents and texts to embed (default: nothing)",
         shows_default=False),
    Flag("--max-inputs", ENCODER.max_inputs, "N", integer(1),
         "texts of one request for embeddings or scores"),
    Flag("--max-allowed-chunks", ENCODER.max_allowed_chunks, "N", integer(1),
         "documents of one request to rerank, each of which counts as many times as it is cut to "
         "fit the model"),
    Flag("--max-batch-tokens", ENCODER.max_batch_tokens, "TOKENS", integer(1),
         "tokens of texts that are computed together"),
)  # fmt: skip

IMAGES_FLAGS: Final = (
    Flag("--allowed-media-domains", MEDIA.allowed_media_domains, "DOMAINS", text,
         "hosts that images are fetched from, separated by commas; all = any (default: none)",
         shows_default=False),
    Flag("--allowed-local-media-path", MEDIA.allowed_local_media_path, "DIR", path,
         "images may be read from files below it that have no further hard links (default: from "
         "none)", shows_default=False),
    Flag("--allow-media-redirects", MEDIA.allow_media_redirects, "", None,
         "follow redirects, to those hosts"),
    Flag("--allow-private-media", MEDIA.allow_private_media, "", None,
         "fetch from addresses that are not public, too, such as the local network's"),
    Flag("--media-timeout", MEDIA.media_timeout, "SECONDS", number("seconds", positive=True),
         "for fetching an image"),
    Flag("--max-images", MEDIA.max_images, "N", integer(1), "images of one request"),
    Flag("--max-image-bytes", MEDIA.max_image_bytes, "SIZE", size,
         "of one image, encoded", show_size),
    Flag("--max-image-pixels", MEDIA.max_image_pixels, "N", integer(1),
         "of one image, width times height"),
    Flag("--shrink-images-to", MEDIA.shrink_images_to, "N", integer(1),
         "pixels of an image that a vision model gets: larger images are shrunk to it, or to what "
         "preprocessor_config.json states if that is less; all images of a request share twice as "
         "many"),
    Flag("--max-image-memory", MEDIA.max_image_memory, "SIZE", size,
         "memory of all images that are decoded or wait for the model; 429 beyond it", show_size),
)  # fmt: skip
