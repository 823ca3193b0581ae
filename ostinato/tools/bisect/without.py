"""What is asked by leaving decisions out: which of them, in force alone, still makes the difference, or without which it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ostinato.ir.ops import OP
from ostinato.ir.views import ViewTable
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
from ostinato.tools.bisect.naming import Naming
from ostinato.tools.bisect.report import Culprit
from ostinato.tools.bisect.steps import Seen
from ostinato.tools.bisect.subject import Contract, Outputs, Subject, contract_of, outputs_of

__all__ = ["Without"]

Differs = Callable[[frozenset[str]], bool]


@dataclass
class Without:
    """Runs the right side with fewer decisions, and compares with the `good` outputs of the left one. `first` is the run and the node that differs first, where
    it was seen; `times` is how often each configuration runs, where one may not repeat itself."""

    left: Subject
    right: Subject
    good: Outputs
    contract: Contract
    trials: Trials
    naming: Naming
    first: tuple[int, str] | None = field(default=None)
    times: int = field(default=1)

    def wrong(self, executable: Executable) -> bool:
        """Whether an executable differs from what is right."""
        runs = (outputs_of(executable, self.naming.work) for _ in range(self.times))
        return any(self._differs(outputs) for outputs in runs)

    def capture(self, seen: Seen) -> list[Culprit]:
        """The last step of the shortest captured prefix that differs."""
        del seen
        mend = 'mode="planned"'
        if self.trials.asked("nothing captured", lambda: self.wrong(self.right.executable.clone("planned"))):
            return []
        for entry in self.naming.entries:
            steps = self.right.program.plan.entries[entry].steps
            count = first(len(steps), partial(self._captured, entry))
            if count:
                step = steps[count - 1]
                text = f"step {count - 1} of {entry} (%{step.node}) differs when it is captured with those before it"
                evidence = (
                    f"with the first {count - 1} of {len(steps)} steps captured the sides agree, with one more they do not",
                )
                where = {"entry": entry, "node": step.node}
                return [self.naming.culprit("capture", text, **where, evidence=evidence, workaround=mend)]
        return [self.naming.culprit("capture", "captured steps differ, those of no entry alone", workaround=mend)]

    def bytes(self, seen: Seen) -> list[Culprit]:
        """The two tenants of the same bytes."""
        decisions = shared_bytes(self.right, self.naming.entries)
        spoilt = self._storages(seen)
        kept = self._smallest("{} slots in common bytes", decisions, [self._slots(seen.entry, spoilt)])
        if not kept:
            return []
        entry, tenants = decisions.about[kept[0]][0], tuple(decisions.about[name][1] for name in kept)
        slots = {slot.values[0]: slot for slot in self.right.program.plan.entries[entry].slots}
        who = spoilt if len(spoilt) > 1 else tenants
        text = f"{' and '.join(spelled((name,)) for name in who)} have the same bytes of the arena at a time"
        evidence = [
            f"{spelled((t, *(name for name in who if name != t and name in slots[t].values)))} at {slots[t].range}, "
            f"live [{slots[t].first}, {slots[t].last})"
            for t in tenants
        ]
        reader = tenants[0] if seen.spoilt is None else seen.spoilt[0].name
        names = tuple(dict.fromkeys((*spoilt, *tenants)))
        evidence += _spoilt(seen)
        where = {"entry": entry, "node": reader}
        return [self.naming.culprit("bytes", text, **where, names=names, evidence=evidence, workaround="reuse=False")]

    def in_place(self, seen: Seen) -> list[Culprit]:
        """The result in the bytes of an operand."""
        decisions = in_place(self.right, self.naming.entries)
        suspects = [(f"{seen.entry}/{name}",) for name in self._storages(seen)]
        if seen.wrong is not None:
            suspects += [(f"{seen.entry}/{value.name}",) for value in seen.wrong[0].results]
        kept = self._smallest("{} results in place", decisions, suspects)
        if not kept:
            return []
        entry, name = decisions.about[kept[0]]
        node = self.naming.node(entry, name)
        row = None if node is None else self.right.program.target.row(node.op, node.impl or "")
        pairs = ", ".join(f"{result} in {operand}" for result, operand in (row.in_place if row else ()))
        of = "" if row is None else f" of {row.identity}, whose row allows {pairs}"
        text = f"%{name} lies in the bytes of an operand{of}, and should not"
        names = tuple(decisions.about[item][1] for item in kept)
        where = {"entry": entry, "node": name}
        evidence = _spoilt(seen)
        return [
            self.naming.culprit("in_place", text, **where, names=names, evidence=evidence, workaround="reuse=False")
        ]

    def early(self, seen: Seen) -> list[Culprit]:
        """The kernel that starts early and should not."""
        del seen
        decisions = early_starts(self.right, self.naming.entries)
        kept = self._smallest("{} kernels start early", decisions)
        if not kept:
            return []
        entry, name = decisions.about[kept[0]]
        text = f"%{name} reads what the step before it has not written yet: it starts early and does not wait"
        return [self.naming.culprit("early", text, entry=entry, node=name, workaround='mode="eager"')]

    def rows(self, seen: Seen) -> list[Culprit]:
        """The node whose row gives other values than a plainer one. What the walk saw is asked first, by leaving that out alone: the others stay fast."""
        decisions = rows_of(self.right)

        def differs(kept: frozenset[str]) -> bool:
            right = outputs_of(decisions.made(kept), self.naming.work)
            left = outputs_of(with_rows(self.left, kept), self.naming.work) if self.contract.exact else self.good
            return self.contract.broken(self.naming.work, left, right) is not None

        ask = self.trials.question("{} nodes with their rows", differs)
        every = frozenset(decisions.names)
        for name in self._suspects(seen):
            if name in every and not ask(every - {name}):
                return [self._row(seen, name, "with the plainest row for this node alone the sides agree")]
            alike = every & frozenset(self._alike(seen.entry, name))
            if len(alike) > 1 and not ask(every - alike):
                return [
                    self._row(
                        seen, name, f"with the plainest row for the {len(alike)} nodes of this row the sides agree"
                    )
                ]
        if self._parts_at_plainest(seen, every):
            assert seen.wrong is not None
            told = "the sides part here, and there is no plainer row to take its place"
            mend = 'mend the row; until then mode="reference"'
            return [self._row(seen, seen.wrong[0].name, told, mend)]
        told = "with the plainest row for every other node the difference stays, for every node it goes"
        return [self._row(seen, name, told) for name in smallest(decisions.names, ask)]

    def passes(self, seen: Seen) -> list[Culprit]:
        """The pass: the last of the shortest list of the user's that differs, or the optional one of ours without which the difference is gone."""
        del seen
        decisions, own, truncated = passes_of(self.right)
        entry, node = self._pass_node()
        count = 0
        if own:
            what = "the first {} passes of yours"
            count = first(len(own), lambda k: self._asked_loosely(what.format(k), lambda: truncated(k))) or 0
        if count:
            name = own[count - 1]
            text = f"pass {name} changes what the graph computes"
            agreed = f"with {', '.join(own[: count - 1])}" if count > 1 else "with none of your passes"
            evidence = [f"{agreed} the sides agree, with {name} behind it they do not"]
            mend = f"leave {name} out, or mend it"
            return [
                self.naming.culprit(
                    "pass", text, entry=entry, node=node, names=(name,), evidence=evidence, workaround=mend
                )
            ]
        kept = self._smallest(
            "{} optional passes", decisions, differs=lambda names: self._loosely(decisions.made(names))
        )
        if not kept:
            return []
        text = f"the difference is gone without pass {kept[0]}"
        evidence = [
            f"of {len(decisions.names)} optional passes, {' and '.join(kept)} alone {'show' if kept[1:] else 'shows'} it"
        ]
        mend = f"disable={list(kept[:1])}"
        return [
            self.naming.culprit("pass", text, entry=entry, node=node, names=kept, evidence=evidence, workaround=mend)
        ]

    def several(self, seen: Seen) -> list[Culprit]:
        """What the walk saw, where no one decision makes the difference: it stays without any of them, since there is another cause beside it."""
        told = "leaving it out alone does not end the difference: there is another cause, to be looked for when this one is mended"
        if seen.spoilt is not None:
            node, spoilt = seen.spoilt
            names, where = self._storages(seen), {"entry": seen.entry, "node": node.name}
            text = f"%{spoilt.value} is not as it was made when %{node.name} reads it"
            evidence = [*_spoilt(seen), told]
            return [
                self.naming.culprit("bytes", text, **where, names=names, evidence=evidence, workaround="reuse=False")
            ]
        return [] if seen.wrong is None else [self._row(seen, seen.wrong[0].name, told)]

    # helpers

    def _differs(self, found: Outputs) -> bool:
        return self.contract.broken(self.naming.work, self.good, found) is not None

    def _captured(self, entry: str, count: int) -> bool:
        def differs() -> bool:
            return self._differs(prefix_outputs(self.right, self.naming.work, entry, count))

        return self.trials.asked(f"the first {count} steps of {entry} captured", differs)

    def _loosely(self, executable: Executable) -> bool:
        """Whether an executable of another program differs by more than other programs may."""
        contract = self.contract
        if contract.exact:
            contract = contract_of(self.left, Subject("", executable), contract.tolerance)
        return contract.broken(self.naming.work, self.good, outputs_of(executable, self.naming.work)) is not None

    def _asked_loosely(self, what: str, made: Callable[[], Executable]) -> bool:
        return self.trials.asked(what, lambda: self._loosely(made()))

    def _smallest(
        self,
        what: str,
        decisions: Decisions,
        suspects: Iterable[Sequence[str]] = (),
        differs: Differs | None = None,
    ) -> tuple[str, ...]:
        """The fewest decisions with which the difference is there; sets of suspects are tried first."""
        ask = self.trials.question(what, differs or (lambda kept: self.wrong(decisions.made(kept))))
        for names in suspects:
            known = [name for name in decisions.names if name in names]
            if known and len(known) == len(names) and ask(frozenset(known)) and not ask(frozenset()):
                return tuple(known) if len(known) == 1 else smallest(known, ask)
        return smallest(decisions.names, ask)

    def _parts_at_plainest(self, seen: Seen, every: frozenset[str]) -> bool:
        """Whether the node that the walk saw to be wrong by itself is where the sides part, and has no row that could be left out."""
        if seen.wrong is None or self.first is None or seen.wrong[0].name in every:
            return False
        return self.first[1] in {value.name for value in seen.wrong[0].results}

    def _row(self, seen: Seen, name: str, told: str, mend: str = "") -> Culprit:
        entry = seen.entry if self.naming.node(seen.entry, name) is not None else self._entry_of(name)
        node = self.naming.node(entry, name)
        assert node is not None
        evidence = [told]
        if seen.wrong is not None and seen.wrong[0].name == name:
            wrong = seen.wrong[1]
            at = f"%{wrong.value}{list(wrong.index)}"
            evidence.append(f"{at} is {wrong.found:.6g}, the reference on the same operands gives {wrong.expected:.6g}")
        alike = self._alike(entry, name)
        if len(alike) > 1:
            evidence.append(f"{len(alike)} nodes of {entry} have the row {node.op}@{node.impl}")
        text = f"the row {node.op}@{node.impl} of %{name} gives other values than its operator"
        level = self.right.program.target.lowest.name.lower()
        mend = mend or f'levels={{"{node.op}": "{level}"}}'
        return self.naming.culprit("row", text, entry=entry, node=name, evidence=evidence, workaround=mend)

    def _suspects(self, seen: Seen) -> list[str]:
        """The nodes that the walk and the two sides side by side point at."""
        names = [] if seen.wrong is None else [seen.wrong[0].name]
        if self.first is not None:
            node = self.naming.node(self.naming.work[self.first[0]].entry, self.first[1])
            names += [] if node is None else [node.name]
        return list(dict.fromkeys(names))

    def _alike(self, entry: str, name: str) -> list[str]:
        """The nodes of all entries that have the row of this one."""
        node = self.naming.node(entry or self._entry_of(name), name)
        graphs = self.right.program.graphs.values()
        return (
            []
            if node is None
            else list(
                dict.fromkeys(n.name for graph in graphs for n in graph.nodes if (n.op, n.impl) == (node.op, node.impl))
            )
        )

    def _entry_of(self, name: str) -> str:
        return next((entry for entry in self.naming.entries if self.naming.node(entry, name) is not None), "")

    def _pass_node(self) -> tuple[str, str]:
        """The first node that differs: what a pass made of the graph is seen there first."""
        if self.first is None:
            return "", ""
        entry = self.naming.work[self.first[0]].entry
        node = self.naming.node(entry, self.first[1])
        return (entry, node.name) if node is not None and not OP[node.op].is_view else ("", "")

    def _storages(self, seen: Seen) -> tuple[str, ...]:
        """The storage that was spoilt and those of who wrote there."""
        if seen.spoilt is None:
            return ()
        graph = self.right.program.graphs[seen.entry]
        views, (_, spoilt) = ViewTable(graph), seen.spoilt
        writer = None if spoilt.writer is None else graph.producers.get(spoilt.writer)
        written = [] if writer is None else [views[value.name].base for value in writer.results]
        return tuple(dict.fromkeys((views[spoilt.value].base, *written)))

    def _slots(self, entry: str, storages: Sequence[str]) -> tuple[str, ...]:
        """The slots in which storages lie, as decisions are called."""
        plan = self.right.program.plan.entries.get(entry)
        slots = () if plan is None else plan.slots
        return tuple(f"{entry}/{slot.values[0]}" for slot in slots if set(slot.values) & set(storages))


def _spoilt(seen: Seen) -> list[str]:
    """What the walk saw of bytes that were written over."""
    if seen.spoilt is None:
        return []
    node, spoilt = seen.spoilt
    after = f"after %{spoilt.writer} wrote there" if spoilt.writer else "after its bytes were written again"
    at = f"%{spoilt.value}{list(spoilt.index)}"
    return [f"%{node.name} reads {at} as {spoilt.found:.6g}, it was made as {spoilt.made:.6g}: {after}"]
