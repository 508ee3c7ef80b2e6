"""Endpoints that load and unload LoRA adapters, compatible with vLLM's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from fastovms.api.admin import operator_refusal
from fastovms.api.body import show
from fastovms.api.context import ApiContext
from fastovms.api.dialect import OPENAI, Dialect
from fastovms.api.endpoint import Operation, Route, endpoint
from fastovms.api.served import KnownModel, ServedModel, no_hold
from fastovms.api.unread import Members
from fastovms.errors import BackendUnavailable, ConfigurationError, InvalidField, ModelNotFound
from fastovms.http.messages import Request, Response
from fastovms.quoting import MAX_ADAPTER_NAME, MAX_ADAPTER_PATH, fault_of_text


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/v1/load_lora_adapter`.

    Attributes:
        lora_path: a directory on the server.
        base_model_name: the model to load the adapter for; None = the only model that serves
            adapters.
    """

    MEMBERS: ClassVar[Members] = Members()

    lora_name: str | None = None
    lora_path: str | None = None
    base_model_name: str | None = None
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/v1/unload_lora_adapter`. vLLM's `lora_int_id` is accepted and ignored."""

    MEMBERS: ClassVar[Members] = Members()

    lora_name: str | None = None
    lora_int_id: int | None = None


class AdapterRoutes:
    """The handlers of the adapter endpoints, which only operators may call."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._changing: set[str] = set()
        """Names of adapters, of any model, that are being loaded or unloaded."""

    async def load(self, request: Request, dialect: Dialect) -> Response:
        """Loads an adapter; when the response is sent, requests may name the adapter. Raises
        BackendUnavailable if the model is being unloaded or its engine has failed; InvalidField if
        a field is invalid or the adapter cannot be served."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        body = await self._context.bodies.read(request, LoadAdapterRequest)
        name = _given(body.lora_name, "lora_name", MAX_ADAPTER_NAME)
        path = Path(_given(body.lora_path, "lora_path", MAX_ADAPTER_PATH))
        if body.load_inplace:
            raise InvalidField.about("load_inplace", "must be false: unload the adapter first")
        models = self._context.models
        if models.get(name) is not None:
            raise InvalidField.about(
                "lora_name",
                f"is {show(name)}, which is the name of a model or an adapter that is served",
            )
        parent = self._parent(body.base_model_name, dialect)
        adapters = parent.adapters
        assert adapters is not None
        with self._change(name), self._hold(parent.info.name):
            try:
                await adapters.load(name, path)
            except ConfigurationError as error:
                raise InvalidField(str(error), param="lora_path") from None
        return _done(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request, dialect: Dialect) -> Response:
        """Unloads an adapter; the response is sent when the adapter's requests have ended and its
        memory is free. Raises BackendUnavailable if the requests do not end in time or the engine
        has failed; ModelNotFound if the adapter is not loaded."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        body = await self._context.bodies.read(request, UnloadAdapterRequest)
        name = _given(body.lora_name, "lora_name", MAX_ADAPTER_NAME)
        for model in self._serving():
            assert model.adapters is not None
            if name in model.adapters.adapters:
                _check_engine(model)
                with self._change(name):
                    await model.adapters.unload(name)
                return _done(f"Success: LoRA adapter '{name}' removed successfully.")
        raise ModelNotFound(
            f"no adapter {show(name)} is loaded", param="lora_name", code="model_not_found"
        )

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Refuses concurrent changes of adapters with one name, because two models could then each
        load an adapter of that name."""
        if name in self._changing:
            raise InvalidField.about(
                "lora_name",
                f"is {show(name)}, an adapter that is being loaded or unloaded; retry later",
            )
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    @contextmanager
    def _hold(self, name: str) -> Iterator[None]:
        """Prevents a model from being unloaded while one of its adapters is loading."""
        holder = self._context.models.holder
        release = no_hold() if holder is None else holder.try_acquire(name)
        if release is None:
            raise BackendUnavailable(f"the model {name} is being unloaded")
        try:
            yield
        finally:
            release()

    def _parent(self, name: str | None, dialect: Dialect) -> ServedModel:
        """Returns the model to load an adapter for. `name` is the model's name; None = the only
        model that serves adapters. Raises InvalidField if there is no such model."""
        models, serving = self._context.models, self._serving()
        if name is not None:
            known = models.find(name, dialect)
            serving = [model for model in serving if model.info.name == known.name]
            if not serving:
                raise InvalidField.about(
                    "base_model_name", f"is {show(name)}, which {_why_not(known)}"
                )
        if not serving:
            whys = [f"{known.name} {_why_not(known)}" for known in models.known]
            raise InvalidField("; ".join(whys) or "no model is served at the moment")
        running = [model for model in serving if model.backend.failure is None]
        if len(running) > 1:
            names = ", ".join(model.info.name for model in running)
            raise InvalidField.about("base_model_name", f"must be one of {names}")
        parent = running[0] if running else serving[0]
        _check_engine(parent)
        return parent

    def _serving(self) -> list[ServedModel]:
        """Returns the models in memory that serve adapters."""
        return [
            model
            for model in (known.served for known in self._context.models.known)
            if isinstance(model, ServedModel) and model.adapters is not None
        ]


def _check_engine(model: ServedModel) -> None:
    if (failure := model.backend.failure) is not None:
        raise BackendUnavailable(f"the engine of {model.info.name} has failed: {failure}")


def _why_not(known: KnownModel) -> str:
    """Returns the reason why adapters cannot be loaded for a model."""
    if known.parent is not None:
        return f"is an adapter of {known.parent.name}"
    if known.served is None:
        return "is not in memory: load it first"
    return "serves no adapters: start the server with --enable-lora"


def _given(value: str | None, name: str, most: int) -> str:
    if value is None:
        raise InvalidField.about(name, "is required")
    if (fault := fault_of_text(value, most)) is not None:
        raise InvalidField.about(name, f"{fault}, not {show(value)}")
    return value


def _done(text: str) -> Response:
    return Response(200, text.encode(), "text/plain; charset=utf-8")


_LOAD: Final = Operation(
    "Loads an adapter (LoRA), for operators, and answers when requests may name it.",
    str,
    "Models",
    media_type="text/plain",
    body=LoadAdapterRequest,
    required=("lora_name", "lora_path"),
)
_UNLOAD: Final = replace(
    _LOAD,
    summary="Unloads an adapter when the requests with it have ended, for operators.",
    body=UnloadAdapterRequest,
    required=("lora_name",),
)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of the adapter endpoints."""
    routes = AdapterRoutes(context)
    yield Route("POST", "/v1/load_lora_adapter", endpoint(routes.load, OPENAI), _LOAD)
    yield Route("POST", "/v1/unload_lora_adapter", endpoint(routes.unload, OPENAI), _UNLOAD)
