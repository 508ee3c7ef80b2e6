"""What the handlers of all generating endpoints share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastovms.api.body_reader import BodyReader
from fastovms.api.dialect import Dialect
from fastovms.api.envelope import Envelope
from fastovms.api.reading import read_body
from fastovms.api.responses.background import ResponsesState
from fastovms.api.sampling import is_streamed, request_id
from fastovms.api.schemas import GenerationFields
from fastovms.api.served import ServedModel, ServedModels
from fastovms.config import ApiConfig
from fastovms.http.messages import Request

Body = TypeVar("Body", bound=GenerationFields)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """
    Attributes:
        new_id: makes unique ids of 32 hexadecimal digits.
        state: what outlives requests; None = nothing does.
    """

    models: ServedModels
    config: ApiConfig
    new_id: Callable[[], str]
    unix_time: Callable[[], float]
    system_fingerprint: str
    bodies: BodyReader
    state: ResponsesState | None = None

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
