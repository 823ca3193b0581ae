"""Naming what makes two sides differ: each question is asked of the side itself or by running it with fewer decisions, and each answer has its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Node
from ostinato.ir.ops import OP
from ostinato.planner.plan import spelled
from ostinato.runtime.executable import Executable
from ostinato.tools.bisect.decisions import (
    Decisions,
    early_starts,
    in_place,
    passes_of,
    prefix_outputs,
    rows_of,
    shared_bytes,
    with_rows,
)
from ostinato.tools.bisect.engine import Trials, first, smallest
from ostinato.tools.bisect.report import Culprit, Kind
from ostinato.tools.bisect.steps import Seen, first_step, frozen_numbers, moved_buffers, unproven, walked
from ostinato.tools.bisect.subject import Outputs, Subject, compared, limit_of, outputs_of, same_program
from ostinato.tools.compare.probe import Probe, first_difference
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Culprits"]

_PLANNED = ("planned", "captured", "guarded")
_LOOKS = 8
"""Pairs of runs in which a node that does not repeat itself is looked for."""
_SHOWN = 4
_RUNS = 3
"""Of a configuration that may not repeat itself."""


@dataclass
class Culprits:
    """Asks for the culprits of one difference: between the `good` outputs of `left` and those of `right`, beyond `limit`."""

    left: Subject
    right: Subject
    work: tuple[WorkStep, ...]
    good: Outputs
    limit: float
    trials: Trials
    told: Callable[[str], None]
    first: tuple[int, str] | None = field(default=None, init=False)
    times: int = field(default=1, init=False)

    def found(self) -> tuple[tuple[Culprit, ...], tuple[int, str] | None]:
        """The culprits, those most to the point first, and the first node that differs, with the number of the run."""
        culprits = [*self._moved(), *self._frozen()]
        self.told("running another one of the same program")
        if not culprits and not self.trials.asked(
            "the same program in memory of its own", lambda: self._wrong(self.right.again())
        ):
            text = "another executable of the same program agrees: something happened to this one"
            return (self._culprit("address", text, workaround="use exe.clone(), or compile again"),), None
        self.told("looking at every node")
        self.first = first_step(self.left, self.right, self.work, exact=self.limit == 0.0)
        if culprits:
            return tuple(culprits), self.first
        seen = Seen("", 0)
        if self.right.mode in _PLANNED:
            self.told("walking the steps")
            seen = walked(self.right.executable, self.work)
        proof = unproven(self.right.program)
        for question in self._questions(seen):
            named = question(seen)
            if named:
                culprits += named
                break
        if seen.nan is not None:
            culprits.append(self._nan(seen))
        if proof:
            culprits.append(self._plan(proof, seen))
        return tuple(culprits), self.first

    def _questions(self, seen: Seen) -> list[Callable[[Seen], list[Culprit]]]:
        """What to ask, likeliest first: what the walk saw comes before what nobody saw."""
        places = [self._bytes, self._in_place, self._early] if self.right.mode in _PLANNED else []
        if seen.spoilt is not None:
            return [*places, self._rows, self._passes]
        if seen.wrong is not None:
            return [*places[1:2], self._rows, self._passes, *places[:1], *places[2:]]
        captured = [self._capture] if self.right.mode == "captured" else []
        return [*captured, *places, self._passes, self._rows]

    # what is asked of the side itself

    def refused(self, error: OstinatoError) -> tuple[Culprit, ...]:
        """A side that raised."""
        node = error.node or ""
        graph = next((name for name, g in self.right.program.graphs.items() if node in g.producers), "")
        text = f"{self.right.name} is refused: {error.message}"
        return (
            self._culprit(
                "error", text, entry=graph, node=node, names=(node,) if node else (), workaround=error.hint or ""
            ),
        )

    def unrepeated(self, subject: Subject) -> tuple[Culprit, ...]:
        """What does not repeat itself: two tenants of the same bytes where it is the right side and that is why, and the first node that is seen to."""
        node = self._unrepeated_node(subject)
        if subject is not self.right or subject.mode not in _PLANNED:
            return (node,)
        self.times = _RUNS
        named: list[Culprit] = []
        captured = [self._capture] if subject.mode == "captured" else []
        for question in (*captured, self._bytes, self._in_place, self._early):
            if named := question(Seen("", 0)):
                break
        proof = unproven(self.right.program)
        return (*named, node, *([self._plan(proof, Seen("", 0))] if proof else []))

    def _unrepeated_node(self, subject: Subject) -> Culprit:
        mode = "planned" if subject.mode == "captured" else subject.mode
        for look in range(_LOOKS):
            self.told(f"looking at every node twice, {look + 1} of {_LOOKS}")
            probes = [Probe(subject.executable, mode) for _ in range(2)]
            for step in self.work:
                seen = [probe.run(step.entry, step.inputs) for probe in probes]
                graph = subject.program.graphs[step.entry]
                counts = {axis: int(step.inputs[name][0]) for axis, name in graph.extents}
                name = first_difference(graph, seen[0], seen[1], counts, 0.0)
                if name is not None:
                    node = graph.producers[name]
                    text = f"%{node.name} does not repeat itself: two runs on the same values gave other bits"
                    mend = f'levels={{"{node.op}": "{subject.program.target.lowest.name.lower()}"}}'
                    return self._culprit("nondeterminism", text, entry=step.entry, node=node.name, workaround=mend)
        text = f"{subject.name} does not repeat itself; no node of it was seen to, one by one"
        return self._culprit("nondeterminism", text, workaround='mode="eager"')

    def _moved(self) -> list[Culprit]:
        """Memory that is not where the loaded steps look for it."""
        entries = list(dict.fromkeys(step.entry for step in self.work))
        found = moved_buffers(self.right.executable, entries)
        if not found:
            return []
        where, names = found[0], tuple(dict.fromkeys(item.value for item in found))
        text = (
            f"{spelled(names[:1])} is read at {where.loaded:#x} by the loaded steps and lies at {where.now:#x} now: "
            f"{where.region} moved after they were loaded"
        )
        evidence = tuple(
            f"step {item.step} ({item.node}): {spelled((item.value,))} {item.loaded:#x}, now {item.now:#x}"
            for item in found[:_SHOWN]
        )
        mend = "bind the new memory (exe.bind) before it is captured, or copy into the old one"
        return [
            self._culprit(
                "address", text, entry=where.entry, node=where.node, names=names, evidence=evidence, workaround=mend
            )
        ]

    def _frozen(self) -> list[Culprit]:
        """Numbers of the host that changed since they were planned."""
        return [
            self._culprit(
                "scalar",
                f"parameter {item.index} of %{item.node} is frozen: the plan has {item.planned}, its row {item.row} says {item.now} now",
                entry=item.entry,
                node=item.node,
                evidence=(f"step {item.step} runs with {item.planned} until it is planned again",),
                workaround="give what changes from run to run as an input of the graph, or compile again when it changes",
            )
            for item in frozen_numbers(self.right.program)
        ]

    def _nan(self, seen: Seen) -> Culprit:
        node = seen.nan
        assert node is not None
        text = f"%{node.name} is the first to make NaN of numbers"
        return self._culprit("nan", text, entry=seen.entry, node=node.name, evidence=(f"in run {seen.run}",))

    def _plan(self, proof: Sequence[str], seen: Seen) -> Culprit:
        entry = proof[0].partition(":")[0]
        node = proof[0].partition("(")[2].partition(":")[0]
        found = entry if entry in self.right.program.graphs else seen.entry
        text = f"the plan is not proven: {proof[0]}"
        mend = "plan again from the graph: a plan is proven when it is made and must not be changed"
        known = node if found and node in self.right.program.graphs[found].producers else ""
        return self._culprit("plan", text, entry=found, node=known, evidence=tuple(proof[:_SHOWN]), workaround=mend)

    # what is asked by leaving decisions out

    def _capture(self, seen: Seen) -> list[Culprit]:
        del seen
        if self.trials.asked("nothing captured", lambda: self._wrong(self.right.executable.clone("planned"))):
            return []
        for entry in dict.fromkeys(step.entry for step in self.work):
            steps = self.right.program.plan.entries[entry].steps

            def differs(count: int, entry: str = entry) -> bool:
                return self.trials.asked(
                    f"the first {count} steps of {entry} captured",
                    lambda: (
                        compared(self.work, self.good, prefix_outputs(self.right, self.work, entry, count), self.limit)
                        is not None
                    ),
                )

            count = first(len(steps), differs)
            if count:
                step = steps[count - 1]
                text = f"step {count - 1} of {entry} (%{step.node}) differs when it is captured with those before it"
                others = ", ".join(f'"{name}"' for name in dict.fromkeys(s.node for s in steps[: count - 1][-1:])) or ""
                evidence = (
                    f"with the first {count - 1} steps captured the sides agree{f', up to {others}' if others else ''}",
                )
                return [
                    self._culprit(
                        "capture", text, entry=entry, node=step.node, evidence=evidence, workaround='mode="planned"'
                    )
                ]
        return [self._culprit("capture", "captured steps differ, of no entry alone", workaround='mode="planned"')]

    def _bytes(self, seen: Seen) -> list[Culprit]:
        decisions = shared_bytes(self.right, self._entries())
        kept = self._smallest("{} slots in common bytes", decisions, ())
        if not kept:
            return []
        entry, names = decisions.about[kept[0]][0], tuple(decisions.about[name][1] for name in kept)
        plan = self.right.program.plan.entries[entry]
        slots = {slot.values[0]: slot for slot in plan.slots}
        text = f"{' and '.join(spelled((name,)) for name in names)} share bytes of the arena that both need"
        evidence = tuple(
            f"{spelled((name,))} at {slots[name].range}, live [{slots[name].first}, {slots[name].last})"
            for name in names
        )
        node = self._spoilt_reader(seen) or names[0]
        return [
            self._culprit(
                "bytes",
                text,
                entry=entry,
                node=node,
                names=names,
                evidence=(*evidence, *self._spoilt(seen)),
                workaround="reuse=False",
            )
        ]

    def _in_place(self, seen: Seen) -> list[Culprit]:
        decisions = in_place(self.right, self._entries())
        kept = self._smallest("{} results in place", decisions, ())
        if not kept:
            return []
        entry, name = decisions.about[kept[0]]
        node = self._node(entry, name)
        text = f"%{name} takes the bytes of an operand that its kernel still reads, or somebody after it"
        if node is not None:
            row = self.right.program.target.row(node.op, node.impl or "")
            pairs = ", ".join(f"{result} in {operand}" for result, operand in (row.in_place if row else ()))
            text = f"%{name} lies in the bytes of an operand of {node.op}@{node.impl}, whose row allows {pairs}"
        names = tuple(decisions.about[item][1] for item in kept)
        return [
            self._culprit(
                "in_place",
                text,
                entry=entry,
                node=name,
                names=names,
                evidence=self._spoilt(seen),
                workaround="reuse=False",
            )
        ]

    def _early(self, seen: Seen) -> list[Culprit]:
        del seen
        decisions = early_starts(self.right, self._entries())
        kept = self._smallest("{} kernels start early", decisions, ())
        if not kept:
            return []
        entry, name = decisions.about[kept[0]]
        text = f"%{name} reads what the step before it has not written yet: it starts early and does not wait"
        return [self._culprit("early", text, entry=entry, node=name, workaround='mode="eager"')]

    def _rows(self, seen: Seen) -> list[Culprit]:
        decisions = rows_of(self.right)
        suspects = [seen.wrong[0].name] if seen.wrong is not None else []
        suspects += [name for name in self._first_node() if name not in suspects]
        pair = same_program(self.left, self.right) and self.limit == 0.0

        def differs(kept: frozenset[str]) -> bool:
            right = outputs_of(decisions.made(kept), self.work)
            left = outputs_of(with_rows(self.left, kept), self.work) if pair else self.good
            return compared(self.work, left, right, self.limit) is not None

        kept = self._smallest("{} nodes with their rows", decisions, suspects, differs)
        if not kept:
            return []
        culprits = []
        for name in kept:
            entry = decisions.about[name][0]
            node = self._node(entry, name)
            assert node is not None
            others = [n.name for n in self.right.program.graphs[entry].nodes if (n.op, n.impl) == (node.op, node.impl)]
            level = self.right.program.target.lowest.name.lower()
            evidence = [
                "with every row but this one replaced by the plainest, the difference stays; without it, it goes"
            ]
            if seen.wrong is not None and seen.wrong[0].name == name:
                wrong = seen.wrong[1]
                evidence.append(
                    f"%{wrong.value}{list(wrong.index)} is {wrong.found:.6g}, the reference on the same operands gives {wrong.expected:.6g}"
                )
            if len(others) > 1:
                evidence.append(f"{len(others)} nodes of {entry} have the row {node.op}@{node.impl}")
            culprits.append(
                self._culprit(
                    "row",
                    f"the row {node.op}@{node.impl} of %{name} gives other values than its operator",
                    entry=seen.entry if seen.wrong is not None and seen.wrong[0].name == name else entry,
                    node=name,
                    evidence=tuple(evidence),
                    workaround=f'levels={{"{node.op}": "{level}"}}',
                )
            )
        return culprits

    def _passes(self, seen: Seen) -> list[Culprit]:
        del seen
        decisions, own, truncated = passes_of(self.right)
        at = self._pass_node()
        if own:
            count = first(
                len(own),
                lambda k: self.trials.asked(f"the first {k} passes of yours", lambda: self._loosely(truncated(k))),
            )
            if count:
                name = own[count - 1]
                text = f"pass {name} changes what the graph computes"
                evidence = ("without it and those behind it the sides agree, with it they do not",)
                mend = f"leave {name} out, or mend it"
                return [
                    self._culprit(
                        "pass", text, entry=at[0], node=at[1], names=(name,), evidence=evidence, workaround=mend
                    )
                ]
        kept = self._smallest("{} optional passes", decisions, (), lambda names: self._loosely(decisions.made(names)))
        if not kept:
            return []
        text = f"the difference goes without pass {kept[0]}"
        evidence = (f"of {len(decisions.names)} optional passes, {', '.join(kept)} alone shows it",)
        mend = f"disable={list(kept)}"
        return [self._culprit("pass", text, entry=at[0], node=at[1], names=kept, evidence=evidence, workaround=mend)]

    # helpers

    def _wrong(self, executable: Executable) -> bool:
        runs = (outputs_of(executable, self.work) for _ in range(self.times))
        return any(compared(self.work, self.good, outputs, self.limit) is not None for outputs in runs)

    def _loosely(self, executable: Executable) -> bool:
        """Whether an executable of another program differs by more than other programs may."""
        limit = self.limit or limit_of(self.left, Subject("", executable), self.good)
        return compared(self.work, self.good, outputs_of(executable, self.work), limit) is not None

    def _smallest(
        self,
        what: str,
        decisions: Decisions,
        suspects: Sequence[str],
        differs: Callable[[frozenset[str]], bool] | None = None,
    ) -> tuple[str, ...]:
        """The fewest decisions with which the difference is there; suspects are tried alone first."""
        ask = self.trials.question(what, differs or (lambda kept: self._wrong(decisions.made(kept))))
        for name in suspects:
            if name in decisions.names and ask(frozenset((name,))) and not ask(frozenset()):
                return (name,)
        return smallest(decisions.names, ask)

    def _entries(self) -> list[str]:
        return list(dict.fromkeys(step.entry for step in self.work))

    def _node(self, entry: str, name: str) -> Node | None:
        return self.right.program.graphs[entry].producers.get(name)

    def _first_node(self) -> list[str]:
        if self.first is None:
            return []
        node = self._node(self.work[self.first[0]].entry, self.first[1])
        return [] if node is None else [node.name]

    def _pass_node(self) -> tuple[str, str]:
        """The first node that differs: what a pass made of the graph is seen there first."""
        if self.first is None:
            return "", ""
        entry = self.work[self.first[0]].entry
        node = self._node(entry, self.first[1])
        return (entry, node.name) if node is not None and not OP[node.op].is_view else ("", "")

    def _spoilt(self, seen: Seen) -> tuple[str, ...]:
        if seen.spoilt is None:
            return ()
        node, spoilt = seen.spoilt
        writer = f"after %{spoilt.writer} wrote there" if spoilt.writer else "after its bytes were written again"
        return (
            f"%{node.name} reads %{spoilt.value}{list(spoilt.index)} as {spoilt.found:.6g}, it was made as {spoilt.made:.6g}: {writer}",
        )

    def _spoilt_reader(self, seen: Seen) -> str:
        return "" if seen.spoilt is None else seen.spoilt[0].name

    def _culprit(
        self,
        kind: Kind,
        text: str,
        *,
        entry: str = "",
        node: str = "",
        names: Sequence[str] = (),
        evidence: tuple[str, ...] = (),
        workaround: str = "",
    ) -> Culprit:
        """With what the program says of the node: operator, row, number of its step, the user's line."""
        found = self._node(entry, node) if entry else None
        steps: Mapping[str, int] = {}
        if entry:
            steps = {step.node: number for number, step in enumerate(self.right.program.plan.entries[entry].steps)}
        return Culprit(
            kind=kind,
            text=text,
            names=tuple(names),
            entry=entry,
            node=node,
            op="" if found is None else found.op,
            row="" if found is None or found.impl is None else f"{found.op}@{found.impl}",
            step=steps.get(node),
            line="" if found is None or found.location is None else str(found.location),
            evidence=evidence,
            workaround=workaround,
        )
