"""What a comparison did not try: said beside its verdicts, since "every contract holds" is a claim about the work alone.

Counted from what ran and from the graphs: positions that no sequence reached, windows that cut nothing off, entries (buckets) that no step ran, cases that a
slow side was not given, and pairs that there were none of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.frontend.model import Model
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.tools.compare.verdicts import Ran
from ostinato.tools.compare.workload import Case, longest_sequence, steps_of

__all__ = ["not_covered"]


def not_covered(
    ran: Sequence[Ran],
    executables: Mapping[str, TextExecutable | EmbedExecutable],
    cases: Sequence[Case],
    model: Model | None,
) -> tuple[str, ...]:
    """Sentences for people, none where all was tried. `model` is that of sides that were compiled here, and may have more positions than they."""
    longest = max(len(row) for case in cases for row in case.sequences)
    context = max(map(longest_sequence, executables.values()))
    context = context if model is None else max(context, model.config.context_limit)
    found = [] if len(ran) > 1 else ["another side: there is one, which was compared with its own replays at most"]
    if longest < context:
        found.append(f"positions from {longest} on, of {context} (--tokens)")
    windows = sorted({size for item in executables.values() for size in _windows(item) if size >= longest})
    if windows:
        shown = ", ".join(map(str, windows))
        found.append(f"the edge of a window of {shown} tokens: sequences have up to {longest} (--tokens)")
    if not any(len(case.sequences) > 1 for case in cases):
        found.append("several sequences at once: a side takes one (B)")
    idle: dict[tuple[str, ...], list[str]] = {}
    fewer: dict[tuple[str, ...], list[str]] = {}
    for item in ran:
        given = {key[0] for key in item.run.answers.keys}
        missed = tuple(case.name for number, case in enumerate(cases) if number not in given)
        if missed:
            fewer.setdefault(missed, []).append(item.name)
        elif item.executable is not None:
            steps = {step.entry for case in cases for step in steps_of(executables[item.name], case)}
            idle.setdefault(tuple(sorted(set(item.executable.entries) - steps)), []).append(item.name)
    found += [f"entries {', '.join(names)} of {', '.join(sides)}" for names, sides in idle.items() if names]
    found += [f"of {', '.join(sides)} the cases {', '.join(names)}" for names, sides in fewer.items()]
    return tuple(found)


def _windows(executable: Executable) -> set[int]:
    """The windows of attention in its graphs, in tokens."""
    nodes = (node for graph in executable.program.graphs.values() for node in graph.nodes)
    sizes = (node.attrs.get("window") for node in nodes)
    return {size for size in sizes if isinstance(size, int) and size > 0}
