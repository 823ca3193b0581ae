"""Recomputation: cheap values are dropped while nobody reads them and computed again before their next reader, until the plan fits in `memory_limit`.

    graph, plan = fit.fit_entry(graph, target, name="prefill", settings=PlanSettings(memory_limit=64 << 20))

What is decided is a `Script`: which nodes run once more, and before which step. Every script is right, since a reader takes the latest instance of a value and
all instances are equal; so scripts are compared by bytes and cost alone, and any part of one can be left out again.

`model` counts bytes and cost of a script, `cut` finds what to drop at the peak (a minimum cut) and what no script goes below, `walk` runs the steps under a
budget and drops by bytes, time and cost, `ladder` collects scripts for falling budgets, `clones` writes a script into the graph as named clones, `fit` tries
scripts on real plans, `shortage` says what is missing when none fits.
The proof of the result is `check_clones.py`, which shares none of this.
"""
