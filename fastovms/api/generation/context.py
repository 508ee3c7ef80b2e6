"""What the handlers of all generating endpoints share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastovms.api.generation.envelope import Envelope
from fastovms.api.request.reading import read_body
from fastovms.api.request.sampling import is_streamed, request_id
from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.body_reader import BodyReader
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import GenerationFields
from fastovms.config import ApiConfig
from fastovms.http.routing.messages import Request

Body = TypeVar("Body", bound=GenerationFields)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """
    Attributes:
        new_id: makes unique ids of 32 hexadecimal digits.
    """

    models: ServedModels
    config: ApiConfig
    new_id: Callable[[], str]
    unix_time: Callable[[], float]
    system_fingerprint: str
    bodies: BodyReader

    async def read(
        self, request: Request, schema: type[Body], dialect: Dialect
    ) -> tuple[Body, ServedModel]:
        """As `read_body` does. Whether the answer is streamed is noted, too."""
        body, model = await read_body(request, schema, self.models, dialect, self.bodies)
        request.log_fields["stream"] = is_streamed(body)
        return body, model

    def envelope(
        self, prefix: str, new_id: str, body: GenerationFields, model: ServedModel, dialect: Dialect
    ) -> Envelope:
        """
        Args:
            prefix: of the answer's id.
            new_id: the rest of it, unless the client has given one.
        """
        return Envelope(
            id=f"{prefix}{request_id(body, new_id)}",
            created=int(self.unix_time()),
            model=model.info.name,
            system_fingerprint=self.system_fingerprint,
            dialect=dialect,
        )
