"""The end of a training step: gradients become new parameters, in place.

One node makes the numbers that all parameters share (`optimizer_factors`), from the step and from settings that the caller may change between two steps, on the
device, so that a captured step follows them; one node a parameter applies them. A loss or a norm of gradients that is no finite number sets `apply` to 0:
then nothing of the step stays, neither parameters and moments nor the step's count, to the bit. A mirror is the parameter in the dtype that products read.
The arithmetic is that of torch.optim.AdamW, torch.optim.SGD and torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import Attr, AttrSpec, Effect, OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops.derivatives import GRADIENT, UPDATE
from ostinato.ir.ops.rules import (
    F32,
    I32,
    Arrays,
    Site,
    cost_per_element,
    define,
    fail,
    join_axes,
    make_type,
    require_shape,
)
from ostinato.ir.ops.samplers import floats, indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = [
    "ADAMW",
    "FACTORS_OPERAND",
    "FACTOR_NAMES",
    "OPTIMIZER_FACTORS",
    "OPTIMIZER_OPS",
    "SCHEDULES",
    "SETTING_NAMES",
    "SGD",
    "SGD_MOMENTUM",
    "sample_factors",
]

SETTING_NAMES = (
    "learning_rate",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "clip_norm",
    "warmup_steps",
    "total_steps",
    "final_ratio",
)
"""What the caller may change between steps, in the order of the operand; beta1 is the momentum of SGD, a clip_norm of 0 clips nothing."""

FACTOR_NAMES = (
    "learning_rate",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "first_correction",
    "second_correction",
    "gradient_scale",
    "apply",
    "norm",
)
"""What one step applies to all parameters, in the order of the result; a correction is 1 / (1 - beta^t)."""

SCHEDULES = ("constant", "linear", "cosine")
"""From the learning rate after the warm-up to final_ratio of it at total_steps, and there it stays."""

_HALVES = frozenset({DType.F16, DType.BF16})
_MOMENTS = frozenset({DType.F32, DType.BF16})
_UPDATE = Tolerance(2e-6, 2e-6, "contract of AdamW's full state: some fp32 operations, one square root, one division")


def _infer_factors(site: Site) -> tuple[TensorType, ...]:
    schedule = site.text("schedule")
    if schedule not in SCHEDULES:
        fail(ConfigError, site.op, f"schedule {' or '.join(SCHEDULES)}", repr(schedule), "choose one of them")
    shapes: tuple[tuple[int, ...], ...] = ((1,), (len(SETTING_NAMES),), (), ())
    for place, (name, shape) in enumerate(zip(("step", "settings", "loss", "square_sum"), shapes, strict=True)):
        found = site.optional(place)
        if found is not None:
            require_shape(site.op, name, found, shape)
    return (site.operand(0).with_layout(None), make_type(site.op, (len(FACTOR_NAMES),), DType.F32, ("",)))


def _ratio(schedule: str, step: float, warmup: float, total: float, final: float) -> float:
    """The learning rate of a step in [1, ...), as a part of the setting."""
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    passed = min((step - warmup) / (total - warmup), 1.0) if total > warmup else 1.0
    if schedule == "linear":
        return 1.0 + (final - 1.0) * passed
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * passed))


def _reference_factors(call: Arrays) -> tuple[Array, ...]:
    """A few scalars: float64 in every precision, as the kernels have them."""
    named = dict(zip(SETTING_NAMES, call.operand(1).astype(np.float64), strict=True))
    step = int(call.operand(0)[0]) + 1
    squares = call.optional(3)
    norm = np.float64(0.0) if squares is None else np.sqrt(squares.astype(np.float64))
    applies = bool(np.isfinite(call.operand(2)) and np.isfinite(norm))
    schedule = _ratio(call.text("schedule"), step, named["warmup_steps"], named["total_steps"], named["final_ratio"])
    clip = named["clip_norm"]
    with np.errstate(divide="ignore", invalid="ignore"):
        corrections = [1.0 / (1.0 - named[name] ** np.float64(step)) for name in ("beta1", "beta2")]
        scale = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    factors = (
        named["learning_rate"] * schedule,
        *(named[name] for name in ("beta1", "beta2", "eps", "weight_decay")),
        *corrections,
        scale if applies else 0.0,
        float(applies),
        norm,
    )
    made = call.operand(0) + np.int32(1) if applies else call.operand(0)
    return np.asarray(made), np.array(factors).astype(np.float32)


def _updated(index: int, count: int) -> bool:
    """Whether an update of `count` operands writes that one: all but the gradient and, before the mirror, the factors."""
    return index not in (1, count - 2)


def _update_rule(operands: tuple[OperandSpec, ...]) -> Callable[[Site], tuple[TensorType, ...]]:
    """The type rule of an update of these operands: all have the shape of the parameter but the factors."""

    def infer(site: Site) -> tuple[TensorType, ...]:
        parameter, axes = site.operand(0), site.operand(0).axes
        results = []
        for index, (spec, tensor) in enumerate(zip(operands, site.operands, strict=True)):
            if tensor is None:
                continue
            if spec is FACTORS_OPERAND:
                require_shape(site.op, spec.name, tensor, (len(FACTOR_NAMES),))
                continue
            require_shape(site.op, spec.name, tensor, parameter.shape)
            axes = join_axes(site.op, spec.name, axes, tensor.axes)
            if _updated(index, len(operands)):
                if not tensor.is_natural:
                    hint = "what is trained is never stored otherwise"
                    fail(LayoutError, site.op, f"{spec.name} in its natural layout", str(tensor), hint)
                results.append(tensor.with_layout(None))
        return tuple(results)

    return infer


def _factors(call: Arrays) -> dict[str, Any]:
    return dict(zip(FACTOR_NAMES, call.wide(len(call.operands) - 2), strict=True))


def _kept(call: Arrays) -> tuple[Array, ...]:
    """Nothing changes: what would be updated, as it is."""
    count = len(call.operands)
    present = [index for index in range(count) if _updated(index, count) and call.optional(index) is not None]
    return tuple(call.operand(index) for index in present)


def _made(call: Arrays, *updated: Array) -> tuple[Array, ...]:
    """The results, the parameter first: a mirror is the parameter as it is stored, rounded."""
    results = tuple(array.astype(np.float32) for array in updated)
    return results if call.optional(len(call.operands) - 1) is None else (*results, results[0])


def _reference_adamw(call: Arrays) -> tuple[Array, ...]:
    factors = _factors(call)
    if not factors["apply"]:
        return _kept(call)
    parameter, gradient = call.wide(0), call.wide(1) * factors["gradient_scale"]
    if call.boolean("decay"):
        parameter = parameter * (1 - factors["learning_rate"] * factors["weight_decay"])
    first = factors["beta1"] * call.wide(2) + (1 - factors["beta1"]) * gradient
    second = factors["beta2"] * call.wide(3) + (1 - factors["beta2"]) * gradient * gradient
    size = np.sqrt(second * factors["second_correction"]) + factors["eps"]
    parameter = parameter - factors["learning_rate"] * factors["first_correction"] * first / size
    return _made(call, parameter, first, second)


def _decayed(call: Arrays, factors: dict[str, Any]) -> Array:
    """The gradient of SGD: that of the loss, scaled, and that of the decay."""
    gradient = call.wide(1) * factors["gradient_scale"]
    if call.boolean("decay"):
        gradient = gradient + factors["weight_decay"] * call.wide(0)
    return np.asarray(gradient)


def _reference_sgd(call: Arrays) -> tuple[Array, ...]:
    factors = _factors(call)
    if not factors["apply"]:
        return _kept(call)
    return _made(call, call.wide(0) - factors["learning_rate"] * _decayed(call, factors))


def _reference_momentum(call: Arrays) -> tuple[Array, ...]:
    factors = _factors(call)
    if not factors["apply"]:
        return _kept(call)
    gradient = _decayed(call, factors)
    velocity = factors["beta1"] * call.wide(2) + gradient
    change = gradient + factors["beta1"] * velocity if call.boolean("nesterov") else velocity
    return _made(call, call.wide(0) - factors["learning_rate"] * change, velocity)


def _settings(
    beta1: float = 0.9, clip_norm: float = 0.0, warmup: float = 0.0, total: float = 100.0, final: float = 0.1
) -> SampleOperand:
    return reals([3e-4, beta1, 0.999, 1e-8, 0.01, clip_norm, warmup, total, final])


def _samples_factors(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    for schedule in SCHEDULES:
        for step in (0, 1, 4, 5, 54, 98, 99, 100, 5000):
            yield valid(
                indices([step]), _settings(clip_norm=1.0, warmup=5.0), reals(2.5), reals(7.0), schedule=schedule
            )
        yield valid(indices([7]), _settings(warmup=3.0, total=3.0), reals(2.5), schedule=schedule)
    plain: dict[str, Attr] = {"schedule": "constant"}
    for squares in (0.0, 0.25, 1e30, np.inf, np.nan):
        yield valid(indices([3]), _settings(clip_norm=1.0), reals(2.5), reals(squares), **plain)
        yield valid(indices([3]), _settings(), reals(2.5), reals(squares), **plain)
    for loss in (np.nan, np.inf, -np.inf):
        yield valid(indices([3]), _settings(), reals(loss), reals(1.0), **plain)
        yield valid(indices([3]), _settings(clip_norm=1.0), reals(loss), **plain)
    yield valid(indices([0]), _settings(beta1=0.0), reals(1.0), **plain)
    good = indices([0]), _settings(), reals(1.0), reals(1.0)
    yield invalid(ConfigError, *good, attrs={"schedule": "step"})
    yield invalid(ConfigError, *good)
    yield invalid(ShapeError, indices(0), *good[1:], attrs=plain)
    yield invalid(ShapeError, good[0], reals([1.0]), *good[2:], attrs=plain)
    yield invalid(ShapeError, *good[:2], reals([1.0]), attrs=plain)
    yield invalid(ShapeError, *good[:3], reals([1.0]), attrs=plain)
    yield invalid(ShapeError, *good[:2], attrs=plain)
    yield invalid(DTypeError, reals([0.0]), *good[1:], attrs=plain)


def sample_factors(scale: float = 1.0, applies: float = 1.0) -> SampleOperand:
    """Factors of a step for samples: with that scale of the gradient, applied or not."""
    return reals([1e-2, 0.9, 0.95, 1e-8, 0.1, 2.5, 4.0, scale, applies, 3.0])


def _samples_update(
    operands: tuple[OperandSpec, ...], *switches: str
) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """With and without a mirror, with and without each switch, a step that is not applied, and every kind of operand that does not fit."""

    def call(
        rng: np.random.Generator,
        shape: tuple[int, ...],
        factors: SampleOperand,
        narrow: DType = DType.F32,
        mirror: DType | None = None,
        axes: str = "",
    ) -> tuple[SampleOperand, ...]:
        found = []
        for spec in operands:
            if spec is FACTORS_OPERAND:
                found.append(factors)
            elif spec.name == "second":  # squares
                found.append(floats(rng.standard_normal(shape) ** 2 + 1e-3, narrow, axes))
            elif spec is not MIRROR:
                found.append(normal(shape, narrow if narrow in spec.dtypes else DType.F32, axes))
            elif mirror is not None:
                found.append(normal(shape, mirror, axes))
        return tuple(found)

    on: dict[str, Attr] = dict.fromkeys(switches, True)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((1, 64), (3, 33), (7, 257), (2, 3, 5), (1,), (5000,), (), (0, 8), (3, 0)):
            yield valid(*call(rng, shape, sample_factors()), **on)
        for mirror in (None, DType.BF16, DType.F16):
            for narrow in (DType.F32, DType.BF16):
                yield valid(*call(rng, (5, 67), sample_factors(0.3), narrow, mirror), **on)
                yield valid(*call(rng, (5, 67), sample_factors(0.0, 0.0), narrow, mirror), **on)
        for name in switches:
            yield valid(*call(rng, (5, 67), sample_factors()), **{**on, name: False})
        yield valid(*call(rng, (4, 6), sample_factors(), mirror=DType.BF16, axes="FC"), **on)
        lost = call(rng, (9,), sample_factors(0.0, 0.0))  # what is not applied is not looked at
        yield valid(lost[0], reals([np.nan] * 9), *lost[2:], **on)
        good = call(rng, (4, 6), sample_factors(), mirror=DType.BF16)
        for index, operand in enumerate(good):
            wrong = normal((1, 6), operand.type.dtype)
            yield invalid(ShapeError, *good[:index], wrong, *good[index + 1 :], attrs=on)
            wrong = indices(np.zeros(operand.type.static_shape))
            yield invalid(DTypeError, *good[:index], wrong, *good[index + 1 :], attrs=on)
        named = normal((4, 6), axes="FC"), normal((4, 6), axes="CF")
        yield invalid(LayoutError, *named, *good[2:], attrs=on)
        yield invalid(ShapeError, *good[:2], attrs=on)
        yield invalid(ConfigError, *good)

    return samples


FACTORS_OPERAND = OperandSpec("factors", F32)
MIRROR = OperandSpec("mirror", _HALVES, optional=True)
_PARAMETER = (OperandSpec("parameter", F32), GRADIENT)
_ADAMW = (*_PARAMETER, OperandSpec("first", _MOMENTS), OperandSpec("second", _MOMENTS), FACTORS_OPERAND, MIRROR)
_SGD = (*_PARAMETER, FACTORS_OPERAND, MIRROR)
_MOMENTUM = (*_PARAMETER, OperandSpec("velocity", F32), FACTORS_OPERAND, MIRROR)
_DECAY = AttrSpec("decay", bool)

OPTIMIZER_FACTORS = define(
    "optimizer_factors",
    "What one step applies to all parameters, and the step's count: the scheduled learning rate, bias corrections, the scale that clips all gradients' norm.",
    (
        OperandSpec("step", I32),
        OperandSpec("settings", F32),
        OperandSpec("loss", F32),
        OperandSpec("square_sum", F32, optional=True),
    ),
    ("step_out", "factors"),
    _infer_factors,
    _reference_factors,
    _samples_factors,
    Tolerance(1e-7, 1e-6, "float64 powers and one cosine, rounded once"),
    attrs=(AttrSpec("schedule", str),),
    effect=Effect.STATE,
    must_alias=((0, 0),),
    cost=cost_per_element(60),
    derivative=UPDATE,
)

ADAMW = define(
    "adamw",
    "A step of AdamW (Loshchilov and Hutter 2019) in the bytes of a parameter, its moments and its mirror; nothing changes where the factors do not apply.",
    _ADAMW,
    ("parameter_out", "first_out", "second_out", "mirror_out"),
    _update_rule(_ADAMW),
    _reference_adamw,
    _samples_update(_ADAMW, "decay"),
    _UPDATE,
    attrs=(_DECAY,),
    effect=Effect.STATE,
    must_alias=((0, 0), (1, 2), (2, 3), (3, 5)),
    cost=cost_per_element(14),
    derivative=UPDATE,
)

SGD = define(
    "sgd",
    "A step of gradient descent in the bytes of a parameter and its mirror; nothing changes where the factors do not apply.",
    _SGD,
    ("parameter_out", "mirror_out"),
    _update_rule(_SGD),
    _reference_sgd,
    _samples_update(_SGD, "decay"),
    _UPDATE,
    attrs=(_DECAY,),
    effect=Effect.STATE,
    must_alias=((0, 0), (1, 3)),
    cost=cost_per_element(5),
    derivative=UPDATE,
)

SGD_MOMENTUM = define(
    "sgd_momentum",
    "A step of gradient descent with momentum beta1, which Nesterov's form looks ahead by, in the bytes of a parameter, its velocity and its mirror.",
    _MOMENTUM,
    ("parameter_out", "velocity_out", "mirror_out"),
    _update_rule(_MOMENTUM),
    _reference_momentum,
    _samples_update(_MOMENTUM, "decay", "nesterov"),
    _UPDATE,
    attrs=(_DECAY, AttrSpec("nesterov", bool, False)),
    effect=Effect.STATE,
    must_alias=((0, 0), (1, 2), (2, 4)),
    cost=cost_per_element(9),
    derivative=UPDATE,
)

OPTIMIZER_OPS = (
    OPTIMIZER_FACTORS,
    ADAMW,
    SGD,
    SGD_MOMENTUM,
)
