"""`ostinato repro`: bundles of a few operators with the values that they read, which show a fault without the model."""

from __future__ import annotations

from ostinato.tools.repro.bundle import read_bundle
from ostinato.tools.repro.run import repro

__all__ = ["read_bundle", "repro"]
