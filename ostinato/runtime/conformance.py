"""Capture conformance: proof that a captured graph is the plan.

The graph is read back from the driver, node by node and edge by edge, and compared with what the plan says. Addresses are worked out here from the plan's byte
ranges and from where its regions lie; what the step table was given is compared with that too. Lifetimes of slots are the plan's, which its own checker has
proven; hazards are worked out anew (`capture_order.py`). The rules:

1. the step table is the plan's: the same steps in the same order, with the planned addresses;
2. the graph has as many nodes as its steps record;
3. every node is a kernel, a copy or a fill: nothing allocates, frees, calls the host or holds another graph;
4. a launch has its kernel's function, grid, block and shared bytes;
5. every pointer is the planned address;
6. every pointer lies, with its bytes, in what the plan has there: a slot that is live at the step, a weight, state, a constant, an input or output, or the
   caller's buffer bound in its place;
7. every scalar is the step's constant, bit for bit;
8. the status word's address and the number of the step are right;
9. a copy or fill has the planned addresses and bytes, and the fill its value;
10. a vendor's node works on the operands of its step: judged by its arguments where the driver shows them, otherwise counted as opaque;
11. the edges order every hazard of the plan and form no cycle.

All findings are collected. Where the number of nodes is wrong, nodes are matched with steps from both ends, so that one node too many is one finding.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ostinato.ir.errors import PlanError
from ostinato.ir.step import WORKSPACE, ByteRange, Region, Step, StepKind, StepOperand
from ostinato.planner.plan import EntryPlan, ProgramPlan, spelled
from ostinato.runtime.capture_nodes import Expected, Place, node_problems, vendor_problems
from ostinato.runtime.capture_order import Access, hazards_of, order_of, unordered_pairs
from ostinato.runtime.device import CapturedNode, ResolvedStep

__all__ = ["CaptureFinding", "CaptureReport", "PlacedMemory", "TableFacts", "examine_capture"]
