"""Every operator of the table against its own samples: type rule, reference, error family, cost, and symbolic dimensions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, OstinatoError, ShapeError
from ostinato.ir.opdef import Attr, Effect, OpDef, Sample, Tolerance
from ostinato.ir.ops import OP, OPS
from ostinato.ir.ops.rules import elements
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.rounding import widen
from ostinato.ir.types import Array, Dim, DType, TensorType

FOLDER = Path(__file__).resolve().parents[2] / "ostinato" / "ir" / "ops"
by_operator = pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])


def operand_types(sample: Sample) -> tuple[TensorType | None, ...]:
    return tuple(None if operand is None else operand.type for operand in sample.operands)


def run(op: OpDef, sample: Sample, rng: np.random.Generator) -> tuple[tuple[TensorType, ...], tuple[Array, ...]]:
    """Result types and reference results of a sample."""
    results = op.infer(operand_types(sample), sample.attrs)
    arrays = [None if o is None else widen(materialise(o, rng), o.type.dtype) for o in sample.operands]
    return results, op.reference(arrays, sample.attrs, results)


@by_operator
def test_valid_samples_give_what_is_inferred(op: OpDef, rng: np.random.Generator) -> None:
    samples = [sample for sample in op.samples(rng) if sample.error is None]
    assert samples, f"{op.name} has no valid sample"
    for sample in samples:
        types, arrays = run(op, sample, rng)
        assert len(types) == len(arrays)
        absent = len(op.must_alias) - len(op.aliased(sample.operands))
        assert len(types) >= len(op.results) - absent - op.results[-1].endswith("*")
        for tensor, array in zip(types, arrays, strict=True):
            assert tensor.layout is None
            assert array.shape == tensor.static_shape, f"{op.name} {operand_types(sample)} {dict(sample.attrs)}"
            rounded = array.astype(tensor.dtype.numpy)
            # a reference hands over float32 at most, so that bf16 is the rounding of the float32 result
            assert array.dtype in (np.dtype(np.float32), rounded.dtype)


@by_operator
def test_invalid_samples_raise_their_family(op: OpDef, rng: np.random.Generator) -> None:
    samples = [sample for sample in op.samples(rng) if sample.error is not None]
    assert samples, f"{op.name} has no invalid sample"
    for sample in samples:
        with pytest.raises(OstinatoError) as caught:
            run(op, sample, rng)
        assert type(caught.value) is sample.error, f"{operand_types(sample)} {dict(sample.attrs)}: {caught.value!r}"
        assert caught.value.hint or isinstance(caught.value, ConfigError | DTypeError)
        assert "expected" in caught.value.message or isinstance(caught.value, ConfigError | DTypeError)


@by_operator
def test_schema_is_complete(op: OpDef, rng: np.random.Generator) -> None:
    assert op.name.isidentifier()
    assert op.summary.endswith(".")
    assert op.tolerance.reason
    names = [spec.name for spec in op.operands] + [result.rstrip("*") for result in op.results]
    assert len(set(names)) == len(names), "operands and results have names of their own"
    optional = [spec.optional for spec in op.operands]
    assert optional == sorted(optional), "optional operands come last"
    without = [op.operands[operand].optional for _, operand in op.must_alias]
    assert without == sorted(without), "results of optional operands come last"
    assert not any(without) or [result for result, _ in op.must_alias] == list(range(len(op.results)))
    assert not op.extent or op.extent in names
    assert all(spec.default is None or type(spec.default) is spec.type for spec in op.attrs)
    if op.view is not None:
        assert op.effect is Effect.PURE
    del rng


@by_operator
def test_cost_counts_the_results(op: OpDef, rng: np.random.Generator) -> None:
    for sample in op.samples(rng):
        if sample.error is not None:
            continue
        types = op.infer(operand_types(sample), sample.attrs)
        cost = op.cost(operand_types(sample), types, op.attributes(sample.attrs))
        assert cost.flops >= 0
        if op.is_view:
            assert cost.bytes == 0
        elif not op.must_alias:
            assert cost.bytes >= sum(tensor.nbytes for tensor in types)


@by_operator
def test_references_do_not_write_their_operands(op: OpDef, rng: np.random.Generator) -> None:
    for sample in op.samples(rng):
        if sample.error is not None:
            continue
        arrays = [None if o is None else widen(materialise(o, rng), o.type.dtype).copy() for o in sample.operands]
        for array in arrays:
            if array is not None:
                array.flags.writeable = False
        op.reference(arrays, sample.attrs, op.infer(operand_types(sample), sample.attrs))


@by_operator
def test_references_repeat_themselves(op: OpDef, seed: int) -> None:
    def outcome() -> list[bytes]:
        rng = np.random.default_rng(seed)
        valid = [sample for sample in op.samples(rng) if sample.error is None]
        return [array.tobytes() for sample in valid for array in run(op, sample, rng)[1]]

    assert outcome() == outcome()


def test_table_is_explicit() -> None:
    assert {op.name: op for op in OPS} == dict(OP)
    assert len(OPS) == len(OP)
    with pytest.raises(TypeError):
        OP["silu"] = OPS[0]  # type: ignore[index]


def test_no_operator_is_named_outside_its_entry() -> None:
    """The name of an operator stands in its `define` and nowhere else in the table's folder, not in an `if` either."""
    found: dict[str, int] = {}
    for path in sorted(FOLDER.glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id == "define":
                name = ast.literal_eval(call.args[0])
                found[name] = found.get(name, 0) + 1
    assert found == dict.fromkeys(OP, 1)


def test_attributes_are_completed_in_schema_order() -> None:
    complete = OP["linear_split"].attributes({"axes": "_", "sizes": (4,)})
    assert complete == {"sizes": (4,), "dtype": "", "axes": "_", "eps": 0.0}
    assert list(complete) == ["sizes", "dtype", "axes", "eps"]
    assert OP["scale"].attributes({"factor": 2}) == {"factor": 2.0}
    wrong: list[dict[str, Attr]] = [{}, {"factor": "2"}, {"factor": True}, {"factor": 1.0, "more": 1}]
    for attrs in wrong:
        with pytest.raises(ConfigError):
            OP["scale"].attributes(attrs)
    with pytest.raises(ConfigError):
        OP["slice"].attributes({"axis": 0, "start": 0, "stop": True})


def test_tolerance_widens_by_one_unit_of_the_result() -> None:
    plain = Tolerance(1e-6, 1e-5, "reason")
    assert plain.for_result(DType.F32) is plain
    assert plain.for_result(DType.BF16).relative == pytest.approx(1e-5 + 2**-7)
    assert plain.for_result(DType.F16).relative == pytest.approx(1e-5 + 2**-10)
    exact = Tolerance(0, 0, "reason")
    assert exact.is_exact
    assert exact.for_result(DType.BF16) is exact


# symbolic dimensions

N, B, T, R = Dim("N", 0, 512), Dim("B", 1, 8), Dim("T", 1, 512), Dim("R", 1, 8)


def tensor(text: str, *shape: int | Dim, dtype: DType = DType.F32) -> TensorType:
    return TensorType(shape, dtype, tuple("" if letter == "_" else letter for letter in text))


def ints(text: str, *shape: int | Dim) -> TensorType:
    return tensor(text, *shape, dtype=DType.I32)


CACHE = tensor("PGSD", 4, 2, 16, 32)
SYMBOLIC: dict[str, tuple[str, list[TensorType | None], dict[str, Attr], str]] = {
    "embedding": ("embedding", [ints("BT", B, T), tensor("VC", 100, 64)], {"axis": "C"}, "f32[B:B,T:T,C:64]"),
    "linear": ("linear", [tensor("NC", N, 64), tensor("_C", 96, 64), tensor("_", 96)], {}, "f32[N:N,96]"),
    "linear_split": (
        "linear_split",
        [tensor("NC", N, 64), tensor("_C", 96, 64)],
        {"sizes": (64, 32), "axes": "_F"},
        "f32[N:N,64] f32[N:N,F:32]",
    ),
    "linear_swiglu": ("linear_swiglu", [tensor("NC", N, 64), tensor("_C", 96, 64)], {"axis": "F"}, "f32[N:N,F:48]"),
    "rms_norm": ("rms_norm", [tensor("NC", N, 64), tensor("_", 64)], {"eps": 1e-6}, "f32[N:N,C:64]"),
    "add_rms_norm": (
        "add_rms_norm",
        [tensor("NC", N, 64), tensor("N_", N, 64), tensor("C", 64)],
        {"eps": 1e-6, "dtype": "bf16"},
        "f32[N:N,C:64] bf16[N:N,C:64]",
    ),
    "layer_norm": (
        "layer_norm",
        [tensor("NC", N, 64), tensor("C", 64), tensor("_", 64)],
        {"eps": 1e-6},
        "f32[N:N,C:64]",
    ),
    "gelu": ("gelu", [tensor("NF", N, 64)], {"dtype": "bf16"}, "bf16[N:N,F:64]"),
    "matmul": (
        "matmul",
        [tensor("BHTD", B, 6, T, 32), tensor("BHSD", B, 6, T, 32)],
        {"transpose_b": True},
        "f32[B:B,H:6,T:T,S:T]",
    ),
    "concat": ("concat", [tensor("NC", N, 3), tensor("N_", N, 5)], {"axis": 1, "name": "F"}, "f32[N:N,F:8]"),
    "repeat_interleave": (
        "repeat_interleave",
        [tensor("BTGD", B, T, 2, 32)],
        {"axis": 2, "repeats": 3, "name": "H"},
        "f32[B:B,T:T,H:6,D:32]",
    ),
    "masked_mean": ("masked_mean", [tensor("NC", N, 64), ints("R", R), ints("_", R)], {}, "f32[R:R,C:64]"),
    "reduce_sum": ("reduce_sum", [tensor("NC", N, 64)], {}, "f32[]"),
    "causal_softmax": ("causal_softmax", [tensor("BHTS", B, 6, T, T)], {}, "f32[B:B,H:6,T:T,S:T]"),
    "rope_split_half_bias_bthd": (
        "rope_split_half_bias_bthd",
        [tensor("BTHD", B, T, 6, 32), tensor("_", 192), tensor("BT_", B, T, 16), tensor("BT_", B, T, 16)],
        {},
        "f32[B:B,H:6,T:T,D:32]",
    ),
    "add_at_tokens": (
        "add_at_tokens",
        [tensor("RV", R, 100), ints("R_", R, 8), tensor("R_", R, 8), ints("R", R)],
        {},
        "f32[R:R,V:100]",
    ),
    "penalize": (
        "penalize",
        [
            tensor("RV", R, 100),
            ints("RS", R, 40),
            ints("R", R),
            ints("R", R),
            *(tensor("R", R) for _ in range(3)),
        ],
        {},
        "f32[R:R,V:100]",
    ),
    "rotary_table": ("rotary_table", [ints("N", N), tensor("_", 16)], {}, "f32[N:N,16] f32[N:N,16]"),
    "rope_split_half": (
        "rope_split_half",
        [tensor("BTHD", B, T, 6, 32), tensor("BT_", B, T, 16), tensor("BT_", B, T, 16)],
        {},
        "f32[B:B,T:T,H:6,D:32]",
    ),
    "rotary_table_dynamic": (
        "rotary_table_dynamic",
        [ints("BT", B, T), ints("__", B, T)],
        {"theta": 10000.0, "width": 24, "factor": 2.0, "original_positions": 32},
        "f32[B:B,T:T,12] f32[B:B,T:T,12]",
    ),
    "rotary_table_longrope": (
        "rotary_table_longrope",
        [ints("N", N), ints("N", N), tensor("_", 16), tensor("_", 16)],
        {"original_positions": 32},
        "f32[N:N,16] f32[N:N,16]",
    ),
    "rope_interleaved": (
        "rope_interleaved",
        [tensor("NHD", N, 6, 32), tensor("N_", N, 12), tensor("N_", N, 12)],
        {},
        "f32[N:N,H:6,D:32]",
    ),
    "kv_store": (
        "kv_store",
        [tensor("NGD", N, 2, 32), tensor("NGD", N, 2, 32), ints("N", N), ints("N", N), ints("RW", R, 4), CACHE, CACHE],
        {},
        f"{CACHE} {CACHE}",
    ),
    "attention_packed": (
        "attention_packed",
        [tensor("NHD", N, 6, 32), CACHE, CACHE, ints("N", N), ints("N", N), ints("RW", R, 4), ints("R", R)],
        {"scale": 0.2},
        "f32[N:N,H:6,D:32]",
    ),
    "attention_causal": (
        "attention_causal",
        [tensor("BTHD", B, T, 6, 32), tensor("BTGD", B, T, 2, 32), tensor("BTGD", B, T, 2, 32)],
        {"scale": 0.2},
        "f32[B:B,T:T,H:6,D:32]",
    ),
    "attention_bidirectional": (
        "attention_bidirectional",
        [
            tensor("NHD", N, 6, 32),
            tensor("NGD", N, 2, 32),
            tensor("NGD", N, 2, 32),
            ints("N", N),
            ints("R", R),
            ints("R", R),
        ],
        {"scale": 0.2, "dtype": "bf16"},
        "bf16[N:N,H:6,D:32]",
    ),
    "add": ("add", [tensor("B_", B, 5), tensor("_C", B, 5)], {}, "f32[B:B,C:5]"),
    "reshape": ("reshape", [tensor("NC", N, 96)], {"shape": (0, 3, 32), "axes": "NHD"}, "f32[N:N,H:3,D:32]"),
    "reshape rest": ("reshape", [tensor("BTHD", B, T, 3, 32)], {"shape": (0, 0, -1)}, "f32[B:B,T:T,96]"),
    "reshape symbolic rest": ("reshape", [tensor("NHD", N, 3, 32)], {"shape": (-1, 96)}, "f32[N,96]"),
    "transpose": ("transpose", [tensor("BTHD", B, T, 3, 32)], {"order": (0, 2, 1, 3)}, "f32[B:B,H:3,T:T,D:32]"),
    "slice": ("slice", [tensor("NC", T, 96)], {"axis": 0, "start": 0, "stop": 1}, "f32[N:1,C:96]"),
    "gather_rows": ("gather_rows", [tensor("BTC", B, T, 64), ints("R", R)], {}, "f32[R:R,C:64]"),
    "argmax": ("argmax", [tensor("RV", R, 100)], {}, "i32[R:R]"),
    "advance": (
        "advance",
        [*(ints(axes, R) for axes in "RNNRR"), ints("R_", R, 40), ints("R", R), ints("N", R)],
        {"context": 40},
        "i32[N:R] i32[N:R] i32[R:R] i32[R:R] i32[R:R,40] i32[R:R] i32[N:R]",
    ),
    "cross_entropy": ("cross_entropy", [tensor("BTV", B, T, 100), ints("BT", B, T)], {}, "f32[]"),
}


@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_extents(case: str) -> None:
    name, operands, attrs, expected = SYMBOLIC[case]
    assert " ".join(str(result) for result in OP[name].infer(operands, attrs)) == expected


REFUSED: dict[str, tuple[type[OstinatoError], str, list[TensorType | None], dict[str, Attr]]] = {
    "another dimension": (ShapeError, "add", [tensor("__", N, 5), tensor("__", T, 5)], {}),
    "a number is no dimension": (ShapeError, "add", [tensor("__", N, 5), tensor("__", 512, 5)], {}),
    "other bounds": (ShapeError, "add", [tensor("_", N), tensor("_", Dim("N", 0, 511))], {}),
    "two dimensions in one": (ShapeError, "reshape", [tensor("BTC", B, T, 64)], {"shape": (-1, 64)}),
    "a dimension split": (ShapeError, "reshape", [tensor("N", N)], {"shape": (2, -1)}),
    "rows joined along a dimension": (ShapeError, "concat", [tensor("NC", N, 5), tensor("NC", N, 5)], {"axis": 0}),
    "a dimension repeated": (ShapeError, "repeat_interleave", [tensor("NC", N, 5)], {"axis": 0, "repeats": 2}),
    "more tokens than rows": (
        ShapeError,
        "advance",
        [*(ints(axes, N if axes == "N" else R) for axes in "RNNRR"), ints("R_", R, 40), ints("R", R)],
        {"context": 40},
    ),
    "one axis twice": (
        LayoutError,
        "matmul",
        [tensor("BTD", B, T, 32), tensor("BTD", B, T, 32)],
        {"transpose_b": True},
    ),
    "past the lower bound": (BoundsError, "slice", [tensor("N_", T, 5)], {"axis": 0, "start": 0, "stop": 2}),
    "heads that are T": (
        LayoutError,
        "attention_causal",
        [tensor("BHTD", 2, 4, 4, 32), tensor("BTGD", 2, 4, 4, 32), tensor("BTGD", 2, 4, 4, 32)],
        {"scale": 1.0},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_symbolic_extents_that_do_not_agree(case: str) -> None:
    error, name, operands, attrs = REFUSED[case]
    with pytest.raises(error, match="expected"):
        OP[name].infer(operands, attrs)


def test_symbolic_extents_have_no_element_count() -> None:
    assert elements((3, 4)) == 12
    with pytest.raises(ShapeError):
        elements((3, N))


def test_packed_weights_are_known_to_projections_alone() -> None:
    packed = TensorType((96, 64), DType.BF16, layout="panel32")
    pair = TensorType((96, 64), DType.BF16, layout="panel32_pair")
    x = tensor("NC", N, 64)
    for name in ("linear", "embedding"):
        first = ints("N", N) if name == "embedding" else x
        assert OP[name].infer([first, packed], {})
        with pytest.raises(LayoutError):
            OP[name].infer([first, pair], {})
    assert OP["linear_swiglu"].infer([x, pair], {})
    refused: list[Callable[[], object]] = [
        lambda: OP["linear_swiglu"].infer([x, packed], {}),
        lambda: OP["add"].infer([TensorType((96, 64), DType.F32, layout="panel32")] * 2, {}),
    ]
    for call in refused:
        with pytest.raises(LayoutError):
            call()
