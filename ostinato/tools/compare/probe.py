"""Every node's result in one mode, to find the first node at which two modes part.

Each mode hands its results over, the planned ones after each single step, before a later step may take the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.compare.variants import in_variant

__all__ = ["Probe"]


class Probe:
    """A clone of an executable in one mode (or variant) whose runs record the values of all nodes by name."""

    def __init__(self, executable: Executable, mode: str) -> None:
        self._seen: dict[str, Array] = {}
        self._executable = in_variant(executable, mode, self._record)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs an entry and returns its node results. Caches carry over to the next run."""
        self._seen = {}
        self._executable.run(entry, inputs)
        return self._seen

    def _record(self, name: str, values: Array) -> None:
        self._seen[name] = np.array(values)
