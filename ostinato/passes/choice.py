"""Which implementation rows may serve a node, and in which order they are tried.

Fusions, layout assignment and selection share this, so that nothing is fused or laid out for a row that selection would not take. The order is the target's
(`Target.ranked`), with the rows first that selection policies prefer. A row is taken only where a record says that it is right; where none of a node's rows has
one, the plainest rows of the device serve (`Target.lowest`), which is on record too. A rule by hand never falls back: a name, a row or a level that does not
exist is a `ConfigError` that says what does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from ostinato.ir.decision import Against, Decision, PolicyUse, Rejection, reason_of
from ostinato.ir.errors import ConfigError, ShapeError
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.selection_policy import SelectionPolicy
from ostinato.ir.target import NATURAL, CallSite, Impl, Level, Target
from ostinato.ir.views import layout_refusal, types_refusal
from ostinato.passes.policy import BALANCED, Policy, Promotion

__all__ = ["Candidates", "RowChoice"]

_SHOWN = 3
_TRUSTED = Verdict(Finding.VALIDATED)


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Rules by hand. `forced`: (operator or node, row or level): nothing else may serve it; a later rule for a name replaces an earlier one, and a node's
    own comes before its operator's. `limits`: (operator or "*", highest level allowed) where nothing is forced. `policy`: the policy of numerics, which holds
    where nothing is forced.
    """

    forced: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, Level], ...] = ()
    policy: Policy = BALANCED

    def and_forced(self, rules: Any) -> RowChoice:
        """These rules and more forced ones, a mapping from names to rows or levels (None: no more); raises `ConfigError` for anything else."""
        if rules is None:
            return self
        if not isinstance(rules, Mapping):
            raise ConfigError(
                f"levels are {rules!r}, expected a mapping", hint='write like {"linear": "host", "rms_norm": "tuned"}'
            )
        pairs = [(where, row.name.lower() if isinstance(row, Level) else row) for where, row in rules.items()]
        for pair in pairs:
            if not all(isinstance(item, str) for item in pair):
                raise ConfigError(f"levels have {pair!r}, expected an operator or node and a row or level, as text")
        return replace(self, forced=(*self.forced, *pairs))

    def __str__(self) -> str:
        entries = [f"{where}@{row}" for where, row in self.forced] + [
            f"{where}<={level.name.lower()}" for where, level in self.limits
        ]
        policy = "" if self.policy == BALANCED else f" {self.policy}"
        return f"[{', '.join(entries)}]{policy}"


class Candidates:
    """The rows of one target in order of preference, by operator; filtered for a node by a `RowChoice`.

    Raises `ConfigError` for rules about an operator whose row or level does not exist, and for a policy that prefers a row which the target does not have.
    """

    def __init__(self, target: Target, choice: RowChoice) -> None:
        self._target = target
        self._forced: Mapping[str, str] = dict(choice.forced)
        self._limits: Mapping[str, Level] = dict(choice.limits)
        self._policy = choice.policy
        self._lowest = target.lowest
        operators = dict.fromkeys(row.op for row in target.rows)
        self._rows = {op: rows for op in operators if (rows := target.ranked(op))}
        for name, wanted in self._forced.items():
            if name in self._rows:
                target.forced(name, wanted)
        if unknown := sorted(set(self._limits) - {"*", *OP}):
            raise ConfigError(f"a highest level is given for {', '.join(unknown)}", hint=self._operators())
        self._policy.check(target)
        self._usable: dict[Hashable, tuple[Impl, ...]] = {}
        self._decided: dict[Hashable, Decision | tuple[Rejection, ...]] = {}
        self._preferences: dict[str, list[tuple[SelectionPolicy, Verdict]]] = {}
        for preference, verdict in _preferences(target, self._policy):
            self._preferences.setdefault(preference.op, []).append((preference, verdict))

    def of(self, op: str) -> tuple[Impl, ...]:
        """All rows of an operator in order of preference."""
        return self._rows.get(op, ())

    def allowed(self, node: Node) -> tuple[Impl, ...]:
        """The rows that rules and policy let serve `node`. Raises `ConfigError` for a forced row or level that does not exist."""
        wanted = self._wanted(node)
        if wanted is not None:
            return self._target.forced(node.op, wanted, node.name)
        return tuple(row for row in self.of(node.op) if self._disallowed(node, row) is None)

    def usable(self, site: CallSite) -> tuple[Impl, ...]:
        """The rows that would serve a call, the one that comes first first, whatever layouts are assigned to what has none yet.

        Validated rows, or where there are none the plainest ones; the reference, which reads weights in an order of its own, only where nothing else would do.
        """
        key = self._key(site)
        if key not in self._usable:
            self._usable[key] = self._usable_rows(site)
        return self._usable[key]

    def _usable_rows(self, site: CallSite) -> tuple[Impl, ...]:
        opdef, validated, left = OP[site.node.op], list[Impl](), list[Impl]()
        for row in self._ordered(site, self.allowed(site.node))[0]:
            if types_refusal(row, site, opdef) is None and _takes_settled(row, site):
                finding = self._best_verdict(row, site).finding
                if finding is Finding.VALIDATED:
                    validated.append(row)
                elif self._is_last_resort(row, finding):
                    left.append(row)
        plain = [row for row in validated if row.level is not Level.REFERENCE]
        return tuple(plain or validated or left)

    def best(self, site: CallSite) -> Impl | None:
        """The row that would serve a call, None where none would."""
        return next(iter(self.usable(site)), None)

    def decide(self, site: CallSite) -> Decision | tuple[Rejection, ...]:
        """The row for a call as it stands, layouts included, and all that speaks against the others; the rejections alone where no row serves it."""
        key = self._key(site)
        if key not in self._decided:
            self._decided[key] = self._decision(site)
        return self._decided[key]

    def _decision(self, site: CallSite) -> Decision | tuple[Rejection, ...]:
        node, opdef = site.node, OP[site.node.op]
        allowed = self.allowed(node)
        order, gates, inside = self._ordered(site, allowed)
        chosen: tuple[Impl, Verdict] | None = None
        last: tuple[Impl, Verdict] | None = None
        against: dict[str, Rejection] = {}
        for row in order:
            if chosen is not None:
                against[row.name] = gates.get(row.name) or _after(row, chosen[0])
                continue
            layout = layout_refusal(row, site, opdef)
            refusal = types_refusal(row, site, opdef) or layout
            if refusal is not None:
                unproven = self._unread(row, site) if refusal is layout else None
                against[row.name] = unproven or Rejection(row.name, row.level, Against.PREDICATE, refusal)
                continue
            verdict = self._verdict(row, site)
            if verdict.finding is Finding.VALIDATED:
                chosen = row, verdict
                continue
            against[row.name] = _unproven(row, verdict)
            if last is None and self._is_last_resort(row, verdict.finding):
                last = row, verdict
        if chosen is None and last is not None:
            text = against.pop(last[0].name).text
            chosen = last[0], Verdict(Finding.VALIDATED, reason=f"nothing validated is left: {text}")
        for row in self.of(node.op):
            rejection = None if row in allowed else self._disallowed(node, row)
            if rejection is not None:
                against[row.name] = rejection
        rejected = tuple(against[row.name] for row in self.of(node.op) if row.name in against)
        if chosen is None:
            return rejected
        row, verdict = chosen
        note = verdict.reason
        if row.level is Level.REFERENCE and any(found.reason is not Against.FORCED for found in rejected):
            note = note or "the reference runs, by numpy: no other row serves this call"
        uses = tuple(_use(preference, gate, row, against) for preference, gate in inside)
        return Decision(row.name, row.level, row.exactness, verdict.evidence, rejected, uses, note)

    def refuse_unknown(self, graph: Graph) -> None:
        """Raises `ConfigError` for a forced name that is neither an operator with rows nor a node of the graph that runs."""
        nodes = {node.name: node for node in graph.nodes}
        for name in self._forced:
            if name in self._rows or (name in nodes and not OP[nodes[name].op].is_view):
                continue
            what = "a view, which runs nothing" if name in OP or name in nodes else "no operator and no node"
            running = [node.name for node in graph.nodes if not OP[node.op].is_view]
            alike = get_close_matches(name, [*self._rows, *running], _SHOWN) or running[:_SHOWN]
            raise ConfigError(
                f"a row is forced for {name!r}, which is {what} of @{graph.name}",
                hint=f"nodes and operators of like name: {', '.join(alike) or 'none'}; {self._operators()}",
            )

    # parts of a decision

    def _key(self, site: CallSite) -> Hashable:
        """What tells calls apart that are decided apart: models repeat themselves, layer by layer."""
        node = site.node
        name = node.name if node.name in self._forced else ""
        return name, node.op, node.attrs, site.operands, site.results, site.strides, site.offsets, site.counted

    def _disallowed(self, node: Node, row: Impl) -> Rejection | None:
        """Which rule by hand, or which policy, keeps a row from serving a node."""
        wanted = self._wanted(node)
        if wanted is not None:
            if row in self._target.forced(node.op, wanted, node.name):
                return None
            names = {candidate.name for candidate in self.of(node.op)}
            text = f"{'row' if wanted in names else 'level'} {wanted} is forced"
            return Rejection(row.name, row.level, Against.FORCED, text)
        limit = self._limits.get(node.op, self._limits.get("*", Level.VENDOR))
        if row.level > limit:
            text = f"level {row.level.name.lower()} is above the level allowed"
            return Rejection(row.name, row.level, Against.FORCED, text)
        text = self._policy.refusal(row, self._lowest) or ""
        return Rejection(row.name, row.level, Against.POLICY, text) if text else None

    def _ordered(
        self, site: CallSite, allowed: tuple[Impl, ...]
    ) -> tuple[tuple[Impl, ...], dict[str, Rejection], list[tuple[SelectionPolicy, Verdict]]]:
        """Allowed rows with those first that policies prefer; what gates say against preferred rows; and the policies in whose range the call is."""
        inside = self._inside(site)
        named = {row.name: row for row in allowed}
        first: list[Impl] = []
        gates: dict[str, Rejection] = {}
        for preference, verdict in inside:
            row = named.get(preference.row_name)
            if row is None:
                continue
            if verdict.finding is Finding.VALIDATED:
                first.append(row)
            elif row not in first:
                text = f"{preference.name} is not in force: {verdict.reason}"
                gates[row.name] = Rejection(row.name, row.level, reason_of(verdict.finding), text, verdict.evidence)
        return tuple(dict.fromkeys((*first, *allowed))), gates, inside

    def _inside(self, site: CallSite) -> list[tuple[SelectionPolicy, Verdict]]:
        found = self._preferences.get(site.node.op)
        if not found or self._wanted(site.node) is not None:
            return []
        try:
            rows = OP[site.node.op].sizes(site.operands).rows
        except ShapeError:  # a symbolic graph: nothing is chosen for it yet
            return []
        return [(preference, verdict) for preference, verdict in found if preference.covers(rows)]

    def _verdict(self, row: Impl, site: CallSite) -> Verdict:
        """What the records say; rows are trusted where a target has none, and the reference is what others are held against."""
        evidence = self._target.evidence
        return _TRUSTED if evidence is None or row.level is Level.REFERENCE else evidence.verdict(row, site)

    def _best_verdict(self, row: Impl, site: CallSite) -> Verdict:
        """The verdict on a call whose layouts are not settled, as the row would like them: the first one that says validated, or the first."""
        if self._target.evidence is None:
            return _TRUSTED
        verdicts = (self._verdict(row, settled) for settled in _as_row_reads(row, site))
        first = next(verdicts)
        if first.finding is Finding.VALIDATED:
            return first
        return next((verdict for verdict in verdicts if verdict.finding is Finding.VALIDATED), first)

    def _unread(self, row: Impl, site: CallSite) -> Rejection | None:
        """What the records have against a row that cannot take a weight as it lies: because of them it was laid out for another one."""
        unlaid = [
            tensor.with_layout(None) if tensor is not None and tensor.rank == 2 else tensor for tensor in site.operands
        ]
        verdict = self._best_verdict(row, replace(site, operands=tuple(unlaid)))
        return None if verdict.finding is Finding.VALIDATED else _unproven(row, verdict)

    def _is_last_resort(self, row: Impl, finding: Finding) -> bool:
        return row.level == self._lowest and finding in (Finding.MISSING, Finding.STALE)

    def _wanted(self, node: Node) -> str | None:
        return self._forced.get(node.name, self._forced.get(node.op)) if self._forced else None

    def _operators(self) -> str:
        return f"operators: {', '.join(sorted(self._rows))}"


def _takes_settled(row: Impl, site: CallSite) -> bool:
    """Whether a row takes the operands that have their layout already, as parameters do, as they lie."""
    return all(
        tensor is None
        or tensor.layout is None
        or (NATURAL if tensor.is_natural else tensor.layout) in row.layouts_of(spec.name)
        for spec, tensor in zip(OP[site.node.op].operands, site.operands, strict=True)
    )


def _preferences(target: Target, policy: Policy) -> Iterator[tuple[SelectionPolicy, Verdict]]:
    """The selection policies to look at, those that were brought by hand first, each with what says whether it holds."""
    for preference in policy.preferences:
        yield preference, _TRUSTED
    if policy.promotion is Promotion.NONE:
        return
    for preference in target.preferences:
        if policy.promotion is Promotion.ALL:
            yield preference, _TRUSTED
        elif target.evidence is None:
            yield preference, Verdict(Finding.MISSING, reason="there are no records of gates")
        else:
            yield preference, target.evidence.gate(preference)


def _as_row_reads(row: Impl, site: CallSite) -> Iterator[CallSite]:
    """The call with each layout that the row declares for an operand without one, the preferred one first."""
    opdef = OP[site.node.op]
    choices = {
        index: row.layouts_of(spec.name)
        for index, spec in enumerate(opdef.operands)
        if (tensor := site.operands[index]) is not None and tensor.layout is None and tensor.rank == 2
    }
    for turn in range(max((len(layouts) for layouts in choices.values()), default=1)):
        operands = list(site.operands)
        strides = list(site.strides)
        for index, layouts in choices.items():
            tensor, layout = operands[index], layouts[min(turn, len(layouts) - 1)]
            if tensor is not None and layout != NATURAL:
                laid_out = tensor.with_layout(layout)
                operands[index] = laid_out
                strides[index] = None if laid_out.is_packed else strides[index]
        yield replace(site, operands=tuple(operands), strides=tuple(strides))


def _after(row: Impl, chosen: Impl) -> Rejection:
    return Rejection(row.name, row.level, Against.ORDER, f"{chosen.name} comes first")


def _unproven(row: Impl, verdict: Verdict) -> Rejection:
    text = verdict.reason or "no record says that it is right here"
    return Rejection(row.name, row.level, reason_of(verdict.finding), text, verdict.evidence)


def _use(preference: SelectionPolicy, gate: Verdict, chosen: Impl, against: Mapping[str, Rejection]) -> PolicyUse:
    """Whether a policy's row was taken, and why not."""
    if gate.finding is not Finding.VALIDATED or chosen.name == preference.row_name:
        return PolicyUse.by_gate(preference.name, gate)
    found = against.get(preference.row_name)
    return PolicyUse(preference.name, False, f"{found.reason.value}: {found.text}" if found else "not chosen")
