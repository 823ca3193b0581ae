"""What is asked of a side itself: what was refused, what does not repeat itself, memory that moved, numbers that are frozen, NaN, and a plan that is not
proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.errors import OstinatoError
from ostinato.ir.graph import Node
from ostinato.runtime.audit import AuditFinding
from ostinato.tools.bisect.report import Culprit, Kind
from ostinato.tools.bisect.steps import Seen
from ostinato.tools.bisect.subject import Subject
from ostinato.tools.compare.differences import first_difference
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.workload import WorkStep

__all__ = ["Naming"]

_LOOKS = 8
"""Pairs of runs in which a node that does not repeat itself is looked for."""
_SHOWN = 4


@dataclass(frozen=True)
class Naming:
    """Names culprits of one side on some work."""

    subject: Subject
    work: tuple[WorkStep, ...]
    told: Callable[[str], None]

    @property
    def entries(self) -> list[str]:
        """The entries that the work runs."""
        return list(dict.fromkeys(step.entry for step in self.work))

    def node(self, entry: str, value: str) -> Node | None:
        """The node that makes a value."""
        graph = self.subject.program.graphs.get(entry)
        return None if graph is None else graph.producers.get(value)

    def culprit(
        self,
        kind: Kind,
        text: str,
        *,
        entry: str = "",
        node: str = "",
        names: Sequence[str] = (),
        evidence: Sequence[str] = (),
        workaround: str = "",
    ) -> Culprit:
        """With what the program says of the node: operator, row, number of its step, the user's line."""
        found = self.node(entry, node)
        steps: Mapping[str, int] = {}
        if found is not None:
            plan = self.subject.program.plan.entries[entry]
            steps = {step.node: number for number, step in enumerate(plan.steps)}
        return Culprit(
            kind=kind,
            text=text,
            names=tuple(names),
            entry=entry,
            node="" if found is None else found.name,
            op="" if found is None else found.op,
            row="" if found is None or found.impl is None else f"{found.op}@{found.impl}",
            step=None if found is None else steps.get(found.name),
            line="" if found is None or found.location is None else str(found.location),
            evidence=tuple(evidence),
            workaround=workaround,
        )

    def refused(self, error: OstinatoError) -> Culprit:
        """A side that raised."""
        node = error.node or ""
        entry = next((name for name, graph in self.subject.program.graphs.items() if node in graph.producers), "")
        text = f"{self.subject.name} is refused: {error.message}"
        names = (node,) if node else ()
        return self.culprit("error", text, entry=entry, node=node, names=names, workaround=error.hint or "")

    def unrepeated(self) -> Culprit:
        """The first node that does not repeat itself, seen node by node."""
        subject = self.subject
        mode = "planned" if subject.mode == "captured" else subject.mode
        for look in range(_LOOKS):
            self.told(f"looking at every node twice, {look + 1} of {_LOOKS}")
            probes = [Probe(subject.executable, mode) for _ in range(2)]
            for step in self.work:
                seen = [probe.run(step.entry, step.inputs) for probe in probes]
                graph = subject.program.graphs[step.entry]
                found = first_difference(graph, seen[0], seen[1], graph.counts(step.inputs), 0.0)
                if found is not None:
                    node = graph.producers[found.name]
                    text = f"%{node.name} does not repeat itself: two runs on the same values gave other bits"
                    target = subject.program.target
                    row, plainest = target.row(node.op, node.impl or ""), target.lowest
                    mend = "mend the row: there is no plainer one"
                    if row is not None and row.level > plainest:
                        mend = f'levels={{"{node.op}": "{plainest.name.lower()}"}}'
                    where, told = {"entry": step.entry, "node": node.name}, (f"in {subject.name}",)
                    return self.culprit("nondeterminism", text, **where, evidence=told, workaround=mend)
        text = f"{subject.name} does not repeat itself; no node of it was seen to, one by one"
        return self.culprit("nondeterminism", text, workaround='mode="eager"')

    def audited(self) -> list[Culprit]:
        """What the address audit finds: numbers of the host that changed since they were planned, and memory that is not where the loaded steps look for it."""
        executable, found = self.subject.executable, list[tuple[str, AuditFinding]]()
        if executable.mode not in ("planned", "captured", "guarded"):
            return []
        for entry in self.entries:
            found += [(entry, finding) for finding in executable.audit(entry).findings]
        kinds: tuple[Kind, Kind] = ("address", "scalar")
        return [
            self._audit(kind, chosen)
            for kind in kinds
            if (chosen := [item for item in found if _kind(item[1]) == kind])
        ]

    def _audit(self, kind: Kind, found: Sequence[tuple[str, AuditFinding]]) -> Culprit:
        (entry, first), names = found[0], tuple(dict.fromkeys(finding.name for _, finding in found))
        plan = self.subject.program.plan.entries[entry]
        touching = (
            s.node for s in plan.steps if first.name in {s.node, *(o.value for o in s.operands if o is not None)}
        )
        text = f"{first.kind}: {first.name}: {first.message}"
        evidence = [f"{finding.kind}: {finding.name}: {finding.message}" for _, finding in found[1:_SHOWN]]
        evidence += [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        where = {"entry": entry, "node": next(touching, "")}
        return self.culprit(kind, text, **where, names=names, evidence=evidence, workaround=first.hint)

    def nan(self, seen: Seen) -> list[Culprit]:
        """The node that makes NaN of numbers."""
        if seen.nan is None:
            return []
        text = f"%{seen.nan.name} is the first to make NaN of numbers"
        evidence = (f"in run {seen.run}: its operands have none",)
        return [self.culprit("nan", text, entry=seen.entry, node=seen.nan.name, evidence=evidence)]

    def unproven(self, proof: Sequence[str]) -> list[Culprit]:
        """What the checker says against the plan: the first step that it names, and more of what it says."""
        if not proof:
            return []
        entry, _, said = proof[0].partition(": ")
        node = said.partition("(")[2].partition(":")[0]
        mend = "plan again from the graph: a plan is proven when it is made, and not to be changed after"
        text = f"the plan is not proven: {proof[0]}"
        return [self.culprit("plan", text, entry=entry, node=node, evidence=proof[1:_SHOWN], workaround=mend)]


def _kind(finding: AuditFinding) -> Kind:
    return "scalar" if finding.kind == "frozen scalar" else "address"
