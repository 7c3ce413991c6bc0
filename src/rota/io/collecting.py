"""Garbage collection in a process of Rota's own, which makes thousands of objects a second and keeps almost none."""

import gc
from typing import Final

THRESHOLD: Final = (50_000, 20, 20)
"""Objects between collections: a batch of a thousand jobs makes tens of thousands, and keeps none."""


def settle() -> None:
    """What is there now stays: it is not looked through at every collection. For the end of a program's start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLD)
