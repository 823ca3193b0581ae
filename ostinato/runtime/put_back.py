"""Work on an executable's memory after which nothing can tell that it happened."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import numpy as np

from ostinato.ir.types import Array
from ostinato.runtime.regions import Regions

__all__ = ["put_back"]


@contextmanager
def put_back(regions: Regions, reference: MutableMapping[str, Array]) -> Iterator[None]:
    """Copies state and io to the host's memory, and back when the work is over or has failed; with them what the host sees of io, where callers write inputs
    and read outputs, and the state of the reference mode by name.

    Training needs as much memory of the host as parameters, moments and kept gradients take.
    """
    kept = [(buffer, buffer.read(np.uint8, (buffer.nbytes,))) for buffer in (regions.state, regions.io)]
    window = regions.window.view(np.uint8, (regions.io.nbytes,))
    kept_window, kept_reference = window.copy(), dict(reference)
    try:
        yield
    finally:
        for buffer, data in kept:
            buffer.write(data)
        window[...] = kept_window
        reference.update(kept_reference)
