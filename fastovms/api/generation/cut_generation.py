"""Says what a client is told whose generation the server cuts: that it is shutting down, that the
engine has failed, or why the backend refuses the request."""

from __future__ import annotations

from fastovms.errors import BackendError, BackendUnavailable, EngineFailed, RequestError
from fastovms.params import FinishReason, GenerationOutput


def failure(output: GenerationOutput) -> BackendError | RequestError:
    """Returns what it means that a sample ended with ABORT or ERROR."""
    if (refusal := output.refusal) is not None:
        return RequestError(refusal.message, param=refusal.param, code=refusal.code)
    if output.finish_reason is FinishReason.ABORT:
        return BackendUnavailable("the server is shutting down")
    return EngineFailed(output.error or "generation failed")
