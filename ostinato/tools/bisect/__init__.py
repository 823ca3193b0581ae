"""`ostinato bisect`: what makes two ways to run a program differ, and the smallest part of it that shows the difference."""

from __future__ import annotations

from ostinato.tools.bisect.report import BisectReport, Culprit
from ostinato.tools.bisect.search import bisect

__all__ = ["BisectReport", "Culprit", "bisect"]
