"""Has OpenVINO's Python binding make its tables of types while there is one thread to ask for them.

The binding makes a table from element types to numpy's at its first use, as a static variable of
C++, and lets go of the GIL meanwhile. A second thread that asks for the table in that moment waits
for the variable while it holds the GIL, for which the first one waits: the whole process stands
still, deaf to SIGTERM (openvino 2026.4.1, seen once in some thousand starts under load).
"""

from __future__ import annotations

import numpy as np
import openvino as ov


def make_binding_tables() -> None:
    """Makes both tables, of element types and of numpy's dtypes. It is to be called before threads
    use OpenVINO side by side, takes microseconds, and may be repeated."""
    _ = ov.Type(ov.Type.f32.to_dtype())
    _ = ov.Tensor(np.zeros(1, np.float32)).data
