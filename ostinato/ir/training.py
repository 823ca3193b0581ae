"""What the stages of a training step call it and its parts: tracing and differentiation give these names, the planner's report and the runtime go by them."""

from __future__ import annotations

__all__ = [
    "BACKWARD_PREFIX",
    "CHUNK",
    "COUNTER",
    "FACTORS",
    "GRADIENT_PREFIX",
    "LOSS",
    "MASTER_PREFIX",
    "MICRO",
    "SEED",
    "SETTINGS",
    "STEP",
    "TRAIN",
    "is_backward",
]

TRAIN = "train"
"""The entry of a whole step."""

SETTINGS, SEED, COUNTER = "settings", "seed", "counter"
"""Inputs beside the batch: the numbers of the optimizer, the seed of dropout, and the number of the step that dropout counts by."""

STEP = "step"
"""The state that counts the steps that were applied."""

LOSS, FACTORS = "loss", "factors"
"""Outputs: a float32 scalar, and the numbers of `optimizer_factors`, which a step without an optimizer does not have."""

GRADIENT_PREFIX = "grad."
"""In front of the name of a parameter: its gradient, an output where it is kept."""

MASTER_PREFIX = "master."
"""In front of the name of a matrix that is read rounded: the float32 parameter that it mirrors."""

BACKWARD_PREFIX = "d."
"""In front of the name of a forward node: those that its derivative adds."""

MICRO, CHUNK = "micro", "chunk"
"""Scopes of a micro-batch and of a piece of the head, each with its number behind it."""


def is_backward(node: str) -> bool:
    """Whether differentiation added the node of that name."""
    return node.startswith((BACKWARD_PREFIX, GRADIENT_PREFIX))
