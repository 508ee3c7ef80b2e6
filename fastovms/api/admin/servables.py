"""Answers what OpenVINO Model Server tells of its models: KServe's model metadata and readiness,
and the status of the configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import orjson

from fastovms.api.admin.models import operator_refusal
from fastovms.api.serving.residency import ModelState
from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.api.wire.dialect import OVMS
from fastovms.api.wire.error_responses import error_response, model_not_found
from fastovms.errors import BackendUnavailable, ConfigurationError, MalformedBody
from fastovms.http.routing.messages import Request, Response

_VERSION: Final = "1"
"""The only version: models are not versioned here."""

_READY: Final = Response(200)


class ReloadOutcome(NamedTuple):
    """What has come of reading the list of models again.

    Attributes:
        has_changed: whether a model was added, changed or removed.
        faults: what is wrong with models of the list, a sentence each.
    """

    has_changed: bool
    faults: Sequence[str] = ()


Reload = Callable[[], Awaitable[ReloadOutcome]]
"""Reads the list of models again. Raises ConfigurationError: it cannot be read."""


class ServableRoutes:
    """The handlers of KServe's and OVMS's questions about models. Errors are in OVMS's form."""

    def __init__(self, models: ServedModels, reload: Reload | None = None) -> None:
        """
        Args:
            reload: reads the list of models again; None = there is none.
        """
        self._models = models
        self._reload = reload

    def metadata(self, request: Request) -> Response:
        """Answers with KServe's model metadata. The tensors are those of OVMS's LLM graph, which
        have no type."""
        model = self._find(request)
        if model is None:
            return _unknown(request)
        return _json(
            200,
            {
                "name": request.path_params["name"],
                "versions": [_VERSION],
                "platform": "OpenVINO",
                "inputs": [{"name": "input", "datatype": "INVALID", "shape": []}],
                "outputs": [{"name": "output", "datatype": "INVALID", "shape": []}],
            },
        )

    def ready(self, request: Request) -> Response:
        """Answers 200 with an empty body; 404 for an unknown model, 503 for one that has failed or
        is not in memory."""
        model = self._find(request)
        if model is None:
            return _unknown(request)
        failure = model.failure
        if failure is not None:
            return error_response(BackendUnavailable(f"the engine has failed: {failure}"), OVMS)
        if model.state is ModelState.AVAILABLE:
            return _READY
        return error_response(BackendUnavailable(f"the model is {model.state.value}"), OVMS)

    def infer(self, request: Request) -> Response:
        """Refuses KServe's inference, of which a language model has none."""
        if self._find(request) is None:
            return _unknown(request)
        error = MalformedBody("tensors cannot be sent to a language model: use /v3/completions")
        return error_response(error, OVMS)

    def config(self, request: Request) -> Response:
        """Answers with the status of every model."""
        return _json(200, self._statuses())

    async def reload(self, request: Request) -> Response:
        """Reads the list of models again, and answers when what is new is loaded: 201 with the
        status of every model, 200 where nothing has changed, 412 where something is at fault. What
        is not at fault is served all the same. Only operators may ask for it."""
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        if self._reload is None:
            return self.config(request)
        try:
            outcome = await self._reload()
        except ConfigurationError as error:
            return _json(412, {"error": f"the list of models is not reloaded: {error}"})
        if outcome.faults:
            return _json(412, {"error": "; ".join(outcome.faults)})
        return _json(201 if outcome.has_changed else 200, self._statuses())

    def _statuses(self) -> dict[str, object]:
        return {model.name: _status(model) for model in self._models.known}

    def _find(self, request: Request) -> KnownModel | None:
        if request.path_params.get("version", _VERSION) != _VERSION:
            return None
        return self._models.get(request.path_params["name"])


_STATES: Final = {
    ModelState.UNLOADED: "END",
    ModelState.LOADING: "LOADING",
    ModelState.AVAILABLE: "AVAILABLE",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "END",
}
"""OVMS's words. It has none for a model that is out of memory, and comes back when it is asked."""


def _status(model: KnownModel) -> dict[str, object]:
    state, code, message = _STATES[model.state], "OK", "OK"
    fault = model.failure or model.reason
    if fault:
        state, code, message = "END", "UNKNOWN", fault
    status = {"error_code": code, "error_message": message}
    return {"model_version_status": [{"version": _VERSION, "state": state, "status": status}]}


def _unknown(request: Request) -> Response:
    name, version = request.path_params["name"], request.path_params.get("version", _VERSION)
    if version != _VERSION:
        name = f"{name}, version {version[:20]}"
    return error_response(model_not_found(name, OVMS), OVMS)


def _json(status: int, value: object) -> Response:
    return Response(status, orjson.dumps(value))
