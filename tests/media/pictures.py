"""Image files to decode."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image as pillow

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)

CORNERS = np.zeros((16, 32, 3), np.uint8)
"""Red and green above, blue and white below: four fields of 8 x 16, which JPEG preserves."""
CORNERS[:8, :16], CORNERS[:8, 16:], CORNERS[8:, :16], CORNERS[8:, 16:] = RED, GREEN, BLUE, WHITE


def encode(image: Any, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def corners() -> Any:
    return pillow.fromarray(CORNERS)


def png(width: int = 4, height: int = 3, color: tuple[int, ...] = RED) -> bytes:
    return encode(pillow.new("RGB", (width, height), color), "PNG")
