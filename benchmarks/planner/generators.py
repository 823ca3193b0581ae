"""Placement problems of four families, seeded: the same arguments give the same problem everywhere.

    guillotine        a rectangle cut by straight lines: full at every moment, so its height is the optimum, and hard to find again
    random_intervals  lives of random begin and length, half of the buffers small, half large; n / 50 alive at a time
    inference         forward passes of four transformers side by side, over a varying number of tokens
    training          micro-batches of a transformer, forward and backward, in the order in which a pipeline's stage works on them

Sizes are bytes, multiples of `UNIT`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ostinato.planner.problem import Buffer, Problem, Solution, align_up

__all__ = ["FAMILIES", "UNIT", "guillotine", "guillotine_solution", "inference", "random_intervals", "training"]

UNIT = 64
"""Sizes are multiples of this many bytes."""

HEIGHT = 1 << 20
"""Height of the rectangle that `guillotine` cuts."""


@dataclass(frozen=True, slots=True)
class _Rectangle:
    left: int
    right: int
    bottom: int
    top: int


def _cut(n: int, seed: int) -> list[_Rectangle]:
    """`n` rectangles that fill one of `HEIGHT` over 4 n moments, in random order. The largest is cut next, but for some chance."""
    rng = random.Random(f"guillotine {n} {seed}")
    whole = _Rectangle(0, 4 * n, 0, HEIGHT)
    waiting = [(0.0, 0, whole)]
    whole_ones: list[_Rectangle] = []
    made = 0
    while waiting and len(waiting) + len(whole_ones) < n:
        _, _, r = heapq.heappop(waiting)
        if r.right - r.left >= 2 and rng.random() < 0.5:
            at = rng.randrange(r.left + 1, r.right)
            parts = (_Rectangle(r.left, at, r.bottom, r.top), _Rectangle(at, r.right, r.bottom, r.top))
        elif r.top - r.bottom >= 2 * UNIT:
            at = rng.randrange(r.bottom // UNIT + 1, r.top // UNIT) * UNIT
            parts = (_Rectangle(r.left, r.right, r.bottom, at), _Rectangle(r.left, r.right, at, r.top))
        else:
            whole_ones.append(r)
            continue
        for part in parts:
            made += 1
            area = (part.right - part.left) * (part.top - part.bottom)
            heapq.heappush(waiting, (-area * rng.uniform(0.3, 1.0), made, part))
    found = whole_ones + [r for _, _, r in waiting]
    rng.shuffle(found)
    return found


def guillotine(n: int, seed: int) -> Problem:
    """`n` buffers (one at least) whose optimum is `HEIGHT`."""
    return Problem(tuple(Buffer(str(i), r.left, r.right, r.top - r.bottom) for i, r in enumerate(_cut(n, seed))))


def guillotine_solution(n: int, seed: int) -> Solution:
    """The placement that `guillotine(n, seed)` was cut from: an optimal one."""
    rectangles = _cut(n, seed)
    return Solution(tuple(r.bottom for r in rectangles), max(r.top for r in rectangles))


def random_intervals(n: int, seed: int) -> Problem:
    """Begins uniform over 2 n moments, lengths exponential with a mean of a fiftieth of that, sizes up to 4 KiB or up to 256 KiB."""
    rng = random.Random(f"random_intervals {n} {seed}")
    end = 2 * n
    buffers = []
    for i in range(n):
        lower = rng.randrange(end)
        length = max(1, int(rng.expovariate(50 / end)))
        size = rng.randint(1, 64 if rng.random() < 0.5 else 4096) * UNIT
        buffers.append(Buffer(str(i), lower, min(end, lower + length), size))
    return Problem(tuple(buffers))


class _Tape:
    """Buffers in the order in which steps make them, up to a limit; a step lasts `pace` moments."""

    def __init__(self, limit: int, pace: int = 1) -> None:
        self.buffers: list[Buffer] = []
        self.step = 0
        self._limit = limit
        self._pace = pace

    @property
    def full(self) -> bool:
        return len(self.buffers) >= self._limit

    def add(self, size: int, lower: int, upper: int) -> None:
        """A buffer that is alive from step `lower` to step `upper`, both included; none for no bytes."""
        if size and not self.full:
            name = str(len(self.buffers))
            self.buffers.append(Buffer(name, lower * self._pace, (upper + 1) * self._pace, align_up(size, UNIT)))


@dataclass(frozen=True, slots=True)
class _Block:
    """Bytes of the values of one transformer block over some tokens."""

    hidden: int
    heads: int
    mlp: int
    scores: int

    @staticmethod
    def random(rng: random.Random, tokens: int) -> _Block:
        element = rng.choice((2, 4))
        head = rng.choice((64, 128))
        heads = rng.choice((8, 14, 16, 32, 40))
        groups = rng.choice((1, 2, 4, 8))
        width = head * heads
        return _Block(
            hidden=tokens * width * element,
            heads=tokens * (width + 2 * width // groups) * element,
            mlp=tokens * int(width * rng.choice((2.6875, 3.5, 4.0, 5.4375))) * element,
            scores=rng.choice((0, min(tokens, 128) * heads * tokens * 4)),
        )

    def scaled(self, numerator: int, denominator: int) -> _Block:
        """The same block over that share of the tokens."""
        values = (self.hidden, self.heads, self.mlp, self.scores)
        return _Block(*(value * numerator // denominator for value in values))


def inference(n: int, seed: int) -> Problem:
    """Forward passes until there are `n` buffers: residual streams, projections, attention with a workspace, gated feed-forward.

    Four streams run passes side by side, each with a model of its own and at a pace of its own, over as many tokens as a request happens to have.
    """
    rng = random.Random(f"inference {n} {seed}")
    streams = []
    for stream in range(4):
        tape = _Tape(n // 4 + (stream < n % 4), pace=rng.randint(3, 7))
        tokens = rng.choice((64, 128, 256))
        block = _Block.random(rng, tokens)
        layers = rng.randint(12, 48)
        while not tape.full:
            _forward(tape, block.scaled(rng.randint(4, 8), 8), layers, table=tokens * 256)
        streams.append(tape.buffers)
    return Problem(tuple(replace(b, id=str(i)) for i, b in enumerate(chain.from_iterable(streams))))


def _forward(tape: _Tape, block: _Block, layers: int, table: int) -> None:
    start, end = tape.step, tape.step + layers * 11
    tape.add(table, start, end)  # rotary tables, read in every block
    for at in range(start, end, 11):
        tape.add(block.hidden, at, at + 5)  # the residual stream, read by the norm and by the first addition
        tape.add(block.hidden, at + 1, at + 2)  # norm
        tape.add(block.heads, at + 2, at + 3)  # query, key, value
        tape.add(block.heads, at + 3, at + 4)  # the same, rotated
        tape.add(block.scores, at + 4, at + 4)  # workspace of attention
        tape.add(block.hidden, at + 4, at + 5)  # attention
        tape.add(block.hidden, at + 5, at + 10)  # its projection, added: read again behind the feed-forward part
        tape.add(block.hidden, at + 6, at + 7)  # norm
        tape.add(2 * block.mlp, at + 7, at + 8)  # gate and up
        tape.add(block.mlp, at + 8, at + 9)  # their product
        tape.add(block.hidden, at + 9, at + 10)  # down
    tape.add(block.hidden, end, end + 1)
    tape.step = end + 2


def training(n: int, seed: int) -> Problem:
    """Micro-batches until there are `n` buffers: a stage of a pipeline runs a few forward, then one backward and one forward in turn.

    What forward saves is alive until the backward step of its block; gradients and workspaces are short.
    """
    rng = random.Random(f"training {n} {seed}")
    tape = _Tape(n)
    block = _Block.random(rng, rng.choice((128, 512, 2048)))
    layers = rng.randint(8, 24)
    in_flight = rng.randint(1, 4)
    micro_batches = 1 + n // (layers * 18)
    schedule = [(i, True) for i in range(min(in_flight, micro_batches))]
    for i in range(micro_batches):
        schedule.append((i, False))
        if i + in_flight < micro_batches:
            schedule.append((i + in_flight, True))
    begin = {key: place * layers * 10 for place, key in enumerate(schedule)}
    for i in range(micro_batches):
        forward, backward = begin[i, True], begin[i, False]
        for layer in range(layers):
            at, back = forward + layer * 10, backward + (layers - 1 - layer) * 10
            saved = (
                (block.hidden, 0, 9),  # residual stream
                (block.hidden, 1, 8),  # norm
                (block.heads, 2, 7),  # query, key, value
                (block.hidden, 3, 6),  # attention
                (block.hidden, 5, 4),  # second norm
                (2 * block.mlp, 6, 3),  # gate and up
                (block.mlp, 7, 2),  # their product
            )
            for size, made, used in saved:
                if rng.random() < 0.9:  # a value that is not saved is computed again
                    tape.add(size, at + made, back + used)
                else:
                    tape.add(size, at + made, at + made + 1)
                    tape.add(size, back + used - 1, back + used)
            tape.add(block.scores or block.hidden, at + 3, at + 3)  # workspace of attention
            tape.add(block.hidden, at + 4, at + 5)
            tape.add(block.hidden, at + 8, at + 9)
            gradients = (
                (block.hidden, 0, 1),
                (block.mlp, 1, 2),
                (2 * block.mlp, 2, 3),
                (block.hidden, 3, 4),
                (block.hidden, 4, 6),
                (block.heads, 6, 7),
                (block.hidden, 7, 9),
            )
            for size, made, used in gradients:
                tape.add(size, back + made, back + used)
            tape.add(block.scores or block.hidden, back + 6, back + 6)
    return Problem(tuple(tape.buffers))


FAMILIES: Mapping[str, Callable[[int, int], Problem]] = {
    "guillotine": guillotine,
    "random_intervals": random_intervals,
    "inference": inference,
    "training": training,
}
