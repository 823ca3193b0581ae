"""Rows of attention in training: the causal form with what its gradients need, those gradients, an encoder's, and those of the products one by one."""

from __future__ import annotations

from ostinato.backend_hip.impls.attention import MAX_WIDTH, contiguous_width, dense_accepts, strides_of
from ostinato.backend_hip.impls.backward import backward_row, operand_dtypes, result_dtypes
from ostinato.backend_hip.impls.common import FLOATS, Predicate, all_of, first_reason, need_dtype, number, uncounted
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import NATURAL, CallSite
from ostinato.ir.types import DType, TensorType

__all__ = ["ATTENTION_BACKWARD_ROWS"]

_MAX_BACKWARD_WIDTH = 512
_CACHE_LINE = 64
_INDICES = (DType.I32,)
_HEAD_MAJOR = (("q", (NATURAL, "BHTD")), ("k", (NATURAL, "BGTD")), ("v", (NATURAL, "BGTD")))


def _dense(first: int, count: int, widest: int) -> Predicate:
    """So many operands from q on of one float dtype, contiguous along a head that is not too wide."""

    def accepts(site: CallSite) -> str | None:
        query = site.operand(first)
        width = query.shape[-1]
        too_wide = isinstance(width, int) and width > widest
        names = list(enumerate("qkv"[:count], first))
        return first_reason(
            need_dtype("q", query, FLOATS),
            *(need_dtype(name, site.operand(index), (query.dtype,)) for index, name in names[1:]),
            f"the head width must be at most {widest}, found {width}" if too_wide else None,
            *(contiguous_width(site, index, name) for index, name in names),
        )

    return accepts


def _causal_sizes(query: TensorType, key: TensorType) -> tuple[int, ...]:
    batch, time, heads, width = query.static_shape
    return (batch, time, heads, key.static_shape[2], width)


def _scoring(site: CallSite) -> tuple[int | float, ...]:
    return (site.real("scale"), site.integer("window"), site.real("soft_cap"))


def _saved_params(site: CallSite) -> tuple[int | float, ...]:
    q, k = site.operand(0), site.operand(1)
    dtypes = (number(q), number(site.results[0]))
    return (*_causal_sizes(q, k), *_scoring(site), *dtypes, *strides_of(site, 0, 3))


def _log_sum_params(site: CallSite) -> tuple[int | float, ...]:
    """As of the form with values, whose strides nobody looks at."""
    q, k = site.operand(0), site.operand(1)
    dtypes = (number(q), number(site.results[0]))
    return (*_causal_sizes(q, k), *_scoring(site), *dtypes, *strides_of(site, 0, 2), *strides_of(site, 1, 1))


def _causal_params(site: CallSite) -> tuple[int | float, ...]:
    q, k, y = site.operand(1), site.operand(2), site.operand(4)
    dtypes = (number(q), number(y), number(site.results[0]))
    return (*_causal_sizes(q, k), *_scoring(site), *dtypes, *strides_of(site, 1, 3))


def _bytes(*counts: int) -> int:
    """Of parts of so many numbers of four bytes, each on cache lines of its own."""
    return sum(-(-count * 4 // _CACHE_LINE) * _CACHE_LINE for count in counts)


def _converted(site: CallSite) -> int:
    """Float32 sums of the gradient of q, where that is of another dtype."""
    result = site.results[0]
    return 0 if result.dtype is DType.F32 else result.elements


def _causal_workspace(site: CallSite) -> int:
    """Which keys a query sees, a dot product for each query and head, sums."""
    batch, time, heads, _ = site.operand(1).static_shape
    return _bytes(time, time, batch * time * heads, _converted(site))


def _bidirectional_params(site: CallSite) -> tuple[int | float, ...]:
    q, k = site.operand(1), site.operand(2)
    tokens, heads, width = q.static_shape
    sizes = (tokens, heads, k.static_shape[1], width, site.operand(5).static_shape[0])
    dtypes = (number(q), number(site.results[0]))
    return (*sizes, site.real("scale"), *dtypes, *strides_of(site, 1, 3))


def _bidirectional_workspace(site: CallSite) -> int:
    """Which keys a token sees, two numbers for each token and head, sums."""
    tokens, heads, _ = site.operand(1).static_shape
    return _bytes(tokens, tokens, tokens * heads, tokens * heads, _converted(site))


def _part_sizes(query: TensorType, key: TensorType) -> tuple[int, ...]:
    """B, H, G, T, S, D of q [B,T,H,D] and k [B,S,G,D]."""
    batch, time, heads, width = query.static_shape
    _, keys, groups, _ = key.static_shape
    return (batch, heads, groups, time, keys, width)


def _scores_params(site: CallSite) -> tuple[int | float, ...]:
    batch, heads, time, width = site.operand(1).static_shape
    _, groups, keys, _ = site.operand(2).static_shape
    return (batch, heads, groups, time, keys, width, site.real("scale"), number(site.operand(1)))


def _probability_params(site: CallSite) -> tuple[int, ...]:
    return (*_part_sizes(site.operand(0), site.operand(1)), number(site.operand(1)))


def _value_params(site: CallSite) -> tuple[int, ...]:
    return (*_part_sizes(site.operand(1), site.results[0]), number(site.operand(0)))


_GRADIENTS = ("q_gradient", "k_gradient", "v_gradient")
_DENSE = frozenset({"q", "k", "v"})


ATTENTION_BACKWARD_ROWS = (
    backward_row(
        "attention_causal_saved",
        ("q", "k", "v", "y", "log_sum"),
        _saved_params,
        all_of(dense_accepts, uncounted),
        layouts=_HEAD_MAJOR,
        strided=_DENSE,
    ),
    backward_row(
        "attention_log_sum",
        ("q", "k", "log_sum"),
        _log_sum_params,
        all_of(_dense(0, 2, MAX_WIDTH), uncounted),
        layouts=_HEAD_MAJOR[:2],
        strided=frozenset({"q", "k"}),
    ),
    backward_row(
        "attention_causal_backward",
        ("gradient", "q", "k", "v", "y", "log_sum", "workspace", *_GRADIENTS),
        _causal_params,
        all_of(
            operand_dtypes(q=FLOATS, k=FLOATS, v=FLOATS, y=FLOATS),
            _dense(1, 3, _MAX_BACKWARD_WIDTH),
            result_dtypes(),
            uncounted,
        ),
        workspace=_causal_workspace,
        layouts=_HEAD_MAJOR,
        strided=_DENSE,
    ),
    backward_row(
        "attention_bidirectional_backward",
        ("gradient", "q", "k", "v", "row_of_token", "start", "length", "workspace", *_GRADIENTS),
        _bidirectional_params,
        all_of(
            operand_dtypes(q=FLOATS, k=FLOATS, v=FLOATS, row_of_token=_INDICES, start=_INDICES, length=_INDICES),
            _dense(1, 3, _MAX_BACKWARD_WIDTH),
            result_dtypes(),
            uncounted,
        ),
        workspace=_bidirectional_workspace,
        strided=_DENSE,
        exactness=Exactness.TOLERANCE,
    ),
    backward_row(
        "attention_scores_gqa_backward",
        ("gradient", "q", "k", "q_gradient", "k_gradient"),
        _scores_params,
        operand_dtypes(q=FLOATS, k=FLOATS),
        kernel="attention_scores_backward",
    ),
    backward_row(
        "attention_probability_gradient_bthd",
        ("gradient", "v", "y"),
        _probability_params,
        operand_dtypes(v=FLOATS),
        kernel="attention_probability_gradient",
    ),
    backward_row(
        "attention_value_gradient_bthd",
        ("p", "gradient", "y"),
        _value_params,
        operand_dtypes(p=FLOATS),
        kernel="attention_value_gradient",
    ),
)
