"""`ostinato train`: a run from a configuration file."""

from __future__ import annotations
