"""Answers what OpenVINO Model Server tells of its models: KServe's model metadata and readiness,
and the status of the configuration."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.dialect import OVMS
from fastovms.api.wire.error_responses import error_response, model_not_found
from fastovms.errors import BackendUnavailable, MalformedBody
from fastovms.http.routing.messages import Request, Response

_VERSION: Final = "1"
"""The only version: models are not versioned here."""

_READY: Final = Response(200)


class ServableRoutes:
    """The handlers of KServe's and OVMS's questions about models. Errors are in OVMS's form."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def metadata(self, request: Request) -> Response:
        """Answers with KServe's model metadata. The tensors are those of OVMS's LLM graph, which
        have no type."""
        model = self._find(request)
        if model is None:
            return _unknown(request)
        return _json(
            {
                "name": request.path_params["name"],
                "versions": [_VERSION],
                "platform": "OpenVINO",
                "inputs": [{"name": "input", "datatype": "INVALID", "shape": []}],
                "outputs": [{"name": "output", "datatype": "INVALID", "shape": []}],
            }
        )

    def ready(self, request: Request) -> Response:
        """Answers 200 with an empty body; 404 for an unknown model, 503 for one that has failed."""
        model = self._find(request)
        if model is None:
            return _unknown(request)
        failure = model.backend.failure
        if failure is None:
            return _READY
        return error_response(BackendUnavailable(f"the engine has failed: {failure}"), OVMS)

    def infer(self, request: Request) -> Response:
        """Refuses KServe's inference, of which a language model has none."""
        if self._find(request) is None:
            return _unknown(request)
        error = MalformedBody("tensors cannot be sent to a language model: use /v3/completions")
        return error_response(error, OVMS)

    def config(self, request: Request) -> Response:
        """Answers with the status of every model."""
        return _json({model.info.name: _status(model) for model in self._models})

    def _find(self, request: Request) -> ServedModel | None:
        if request.path_params.get("version", _VERSION) != _VERSION:
            return None
        return self._models.get(request.path_params["name"])


def _status(model: ServedModel) -> dict[str, object]:
    failure = model.backend.failure
    state, code, message = ("AVAILABLE", "OK", "OK")
    if failure is not None:
        state, code, message = ("END", "UNKNOWN", failure)
    status = {"error_code": code, "error_message": message}
    return {"model_version_status": [{"version": _VERSION, "state": state, "status": status}]}


def _unknown(request: Request) -> Response:
    name, version = request.path_params["name"], request.path_params.get("version", _VERSION)
    if version != _VERSION:
        name = f"{name}, version {version[:20]}"
    return error_response(model_not_found(name), OVMS)


def _json(value: object) -> Response:
    return Response(200, orjson.dumps(value))
