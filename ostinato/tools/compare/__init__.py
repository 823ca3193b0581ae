"""`ostinato compare`: any ways to run a program side by side, and what the difference is where they do not agree."""

from __future__ import annotations

from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.show import show_comparison
from ostinato.tools.compare.verdicts import TOLERANCE

__all__ = ["TOLERANCE", "compare", "show_comparison"]
