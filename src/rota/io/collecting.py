"""Garbage collection in a process of Rota's own, which makes thousands of objects a second and keeps almost none."""

import gc
from typing import Final

OBJECTS: Final = 50_000
"""Between two collections: a batch of a thousand jobs makes tens of thousands, and keeps none."""
GENERATIONS: Final = (20, 20)


def settle(objects: int = OBJECTS) -> None:
    """What is there now stays: it is not looked through at every collection. For the end of a program's start.

    Args:
        objects: that are made between two collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(objects, *GENERATIONS)
