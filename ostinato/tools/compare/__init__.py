"""`ostinato compare`: any ways to run a program side by side, and what the difference is where they do not agree."""

from __future__ import annotations

from ostinato.tools.compare.comparison import TOLERANCE, compare, show_comparison

__all__ = ["TOLERANCE", "compare", "show_comparison"]
