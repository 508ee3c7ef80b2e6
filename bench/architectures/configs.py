"""Lists the architectures that are compared, as small models with random weights.

Each has the features that distinguish its attention: windows much shorter than the texts, scaled
positions, biases, soft caps, experts, or several kinds of layers.
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
"""The architectures by their names in the table."""
