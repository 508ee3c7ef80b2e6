"""Holds what the handlers of all generating endpoints share: models, configuration, metrics,
ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastovms.api.generation.envelope import SYSTEM_FINGERPRINT, Envelope
from fastovms.api.request.common_fields import is_streamed, request_id
from fastovms.api.request.preparation import FieldNames, Preparation
from fastovms.api.request.typed_body import read_body
from fastovms.api.serving.served import ServedModels
from fastovms.api.wire.body_reader import BodyReader
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import GenerationFields
from fastovms.config import ApiConfig
from fastovms.http.routing.messages import Request

Body = TypeVar("Body", bound=GenerationFields)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What handlers need beside a request.

    Attributes:
        new_id: makes unique ids of 32 random hexadecimal digits.
    """

    models: ServedModels
    config: ApiConfig
    new_id: Callable[[], str]
    unix_time: Callable[[], float]
    bodies: BodyReader
    system_fingerprint: str = SYSTEM_FINGERPRINT

    async def read(
        self,
        request: Request,
        schema: type[Body],
        dialect: Dialect,
        names_of: Callable[[Body], FieldNames],
    ) -> Preparation[Body]:
        """Reads a body and finds its model, and notes whether the answer is streamed.

        Raises:
            RequestError: as `read_body` does.
        """
        body, model = await read_body(request, schema, self.models, dialect, self.bodies)
        request.log_fields["stream"] = is_streamed(body)
        size, names, client = len(request.body), names_of(body), request.sender
        return Preparation(body, size, model, dialect, self.config, names, client)

    def envelope(
        self, prefix: str, new_id: str, preparation: Preparation[GenerationFields]
    ) -> Envelope:
        """Returns what every part of an answer repeats.

        Args:
            prefix: the beginning of the answer's id.
            new_id: makes the rest of it, unless the client has given one.
        """
        return Envelope(
            id=f"{prefix}{request_id(preparation.body, new_id)}",
            created=int(self.unix_time()),
            model=preparation.model.info.name,
            system_fingerprint=self.system_fingerprint,
            dialect=preparation.dialect,
        )
