"""The process that `compare` asks: reads what to compare on standard input and prints the report as JSON."""

from __future__ import annotations

import sys

from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.processes import Again

__all__ = ["main"]


def main() -> None:
    """Compares once, without replays and tables. What is raised ends the process."""
    asked = Again.model_validate_json(sys.stdin.read())
    report = compare(asked.target, asked.modes, replays=1, operators=False, **asked.settings)
    sys.stdout.write(report.model_dump_json())


if __name__ == "__main__":
    main()
