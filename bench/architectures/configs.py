"""Names the architectures that are compared, as small models of random weights.

Each has whatever makes its attention its own: windows far shorter than the texts, scaled positions,
biases, caps, experts, several kinds of layers.
"""

from __future__ import annotations

from typing import Final

from bench.architectures.architecture import Architecture
from bench.architectures.dense_models import DENSE_MODELS
from bench.architectures.expert_models import EXPERT_MODELS
from bench.architectures.recurrent_models import RECURRENT_MODELS

ARCHITECTURES: Final[dict[str, Architecture]] = {
    **DENSE_MODELS,
    **EXPERT_MODELS,
    **RECURRENT_MODELS,
}
"""By the name in the table."""
