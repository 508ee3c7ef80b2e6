"""Makes what runs a prompt that no template is put around: `raw`, `suffix`, and models without a
template."""

from __future__ import annotations

from functools import partial

from fastovms.api.ollama.asking import Asking
from fastovms.api.ollama.ollama_job import OllamaJob, common_options
from fastovms.api.ollama.ollama_schema import OllamaGenerateRequest
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompt_task import ModelInput, make_tasks
from fastovms.api.request.prompting.prompts import (
    Prompt,
    PromptEncoder,
    check_text,
    check_token_range,
    encoding_cost,
)
from fastovms.api.request.structured import compile_grammar, grammar_of
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.media.image_tags import check_tags
from fastovms.params import TextPrompt
from fastovms.text.tokens.fim import FimTokens


def is_raw(body: OllamaGenerateRequest, model: ServedModel) -> bool:
    """Returns whether the prompt goes to the model as it is.

    Raises:
        InvalidField: what only a template has a place for is given, too.
    """
    is_bare = body.raw is True or bool(body.suffix)
    for name in ("system", "context", "images"):
        if is_bare and getattr(body, name):
            other = "raw is true" if body.raw else "suffix is given"
            raise InvalidField(f"{name} cannot be used when {other}", param=name)
    has_place = model.chat.template is not None or body.system or body.images
    return is_bare or not has_place


async def prepare_raw(
    asking: Asking, body: OllamaGenerateRequest, fim: FimTokens | None
) -> OllamaJob:
    """Checks a request. Long texts are encoded in a thread.

    Args:
        fim: the model's tokens for a suffix, if it has them.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    request = asking.preparation
    model = request.model
    if asking.body.think:
        raise InvalidField("think needs the model's template, which is not used", param="think")
    if body.suffix and fim is None:
        name = show(asking.model_name)
        raise InvalidField(f"suffix: {name} does not support insert", param="suffix")
    check_token_range(body.context or (), "context", model.info)
    options = common_options(asking)
    warnings = [*asking.warnings]
    grammar = await offload.run(partial(grammar_of, request, warnings), request.size)
    cost = encoding_cost([body.prompt or "", body.suffix or ""])
    prompt = await offload.run(partial(_encoded, body, model, fim), cost)
    if grammar is not None:
        grammar = await compile_grammar(grammar, model, request.client)
    [task] = await make_tasks(request, options, ModelInput([prompt.token_ids], grammar))
    if model.images is not None and prompt.text is not None:
        task = task._replace(prompt=TextPrompt(prompt.text))
    tells_context = not body.raw and model.images is None
    return OllamaJob(request, options, task, None, tells_context, warnings)


def _encoded(body: OllamaGenerateRequest, model: ServedModel, fim: FimTokens | None) -> Prompt:
    text = body.prompt or ""
    check_text(text, "prompt", model.info)
    if model.images is not None:
        check_tags(text, 0, "prompt", model.images.reserved)
    encoder = PromptEncoder(model.tokenizer, model.info, add_special_tokens=True)
    if not body.suffix or fim is None:
        return Prompt([*(body.context or ()), *encoder.encode(text, "prompt")], text)
    check_text(body.suffix, "suffix", model.info)
    bare = PromptEncoder(model.tokenizer, model.info, add_special_tokens=False)
    parts = [bare.encode(text, "prompt"), bare.encode(body.suffix, "suffix")]
    # The token that begins a text, if the tokenizer adds one.
    start = model.tokenizer.encode("", add_special_tokens=True)
    return Prompt([*start, *fim.join(*parts)])
