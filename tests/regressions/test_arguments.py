"""Values of the wrong kind, as users pass them: a typed error of the right family, or the plain number that was meant; never a crash or a silent cast."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost

GREEDY = ost.SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
_NUMPY_INTEGERS: tuple[Any, ...] = (np.int8, np.int32, np.int64, np.uint16)


def test_a_path_object_opens_a_model_everywhere(folder: Path) -> None:
    assert ost.compile(folder, buckets={"B": [1], "T": [4]}).rows == 1
    assert ost.trace(folder).graph.nodes
    assert ost.LLM(folder, max_num_seqs=1, context=8).context == 8


@pytest.mark.parametrize("wrong", [None, 3, b"path", object()])
@pytest.mark.parametrize("opens", [ost.load, ost.compile, ost.trace, ost.LLM])
def test_what_is_no_model_is_refused(opens: Callable[[Any], object], wrong: object) -> None:
    with pytest.raises(ost.ConfigError, match="opened by path or name"):
        opens(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": {"B": 1, "T": [4]}},
        {"buckets": {"B": [1.0], "T": [4]}},
        {"buckets": {"B": [True], "T": [4]}},
        {"buckets": {"B": "1", "T": "4"}},
        {"buckets": {"B": [1], "T": []}},
        {"buckets": [1]},
        {"context": 1.5},
        {"context": "64"},
        {"context": True},
        {"threads": "2"},
        {"threads": 1.5},
        {"threads": None},
        {"threads": 2**40},
        {"isa": None},
        {"device": None},
        {"device": 3},
        {"disable": "cse"},
        {"disable": None},
        {"progress": 3},
    ],
)
def test_options_of_the_wrong_type_are_refused(model: ost.Model, options: dict[str, Any]) -> None:
    with pytest.raises(ost.ConfigError):
        ost.compile(model, **{"buckets": {"B": [1], "T": [4]}, **options})


def test_integers_of_numpy_are_integers(model: ost.Model) -> None:
    one, four, eight, sixteen = (kind(value) for kind, value in zip(_NUMPY_INTEGERS, (1, 4, 8, 16), strict=True))
    buckets: dict[str, Any] = {"B": np.array([1]), "T": [four, eight]}
    exe = ost.compile(model, buckets=buckets, context=sixteen, threads=one)
    assert exe.context == 16
    assert ost.LLM(model, max_num_seqs=four, context=eight).executable.rows == 4
    lowered = ost.trace(model).lower(dims={"B": one, "T": four}, disable=["cse"])
    assert lowered.plan().load("cpu").mode == "planned"


@pytest.mark.parametrize("wrong", [None, {"B": 1, "T": 4.0}, {"B": True, "T": 4}, {"B": 1, "T": "4"}])
def test_dimensions_are_integers(model: ost.Model, wrong: Any) -> None:
    with pytest.raises(ost.OstinatoError, match="dim"):
        ost.trace(model).lower(dims=wrong)


@pytest.mark.parametrize("options", [{"threads": 1}, {"isa": "portable"}])
def test_an_open_device_is_not_opened_another_way(
    model: ost.Model, exe: ost.TextExecutable, options: dict[str, Any]
) -> None:
    """Threads and isa were silently those of the device."""
    for opens in (ost.compile, ost.LLM):
        with pytest.raises(ost.ConfigError, match="open already"):
            opens(model, device=exe.device, **options)
    with pytest.raises(ost.ConfigError, match="open already"):
        ost.ops.use(exe.device, **options)


def test_a_plan_is_loaded_by_device_name_and_its_mode_is_settled_first(model: ost.Model) -> None:
    planned = ost.trace(model).lower(dims={"B": 1, "T": 4}).plan()
    assert planned.load("auto", mode="auto").mode == "planned"
    fallback = planned.load(mode="captured")
    assert (fallback.mode, "captured needs a GPU" in fallback.reason) == ("planned", True)
    with pytest.raises(ost.ConfigError, match="mode 'fast' is unknown"):
        planned.load(mode="fast")
    with pytest.raises(ost.ConfigError, match="device is 3"):
        planned.load(3)  # type: ignore[arg-type]
    with pytest.raises(ost.ConfigError, match="cannot run on"):
        fallback.clone("captured")


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1.5, 1)])
def test_a_cache_has_whole_positive_sizes(shape: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ost.ConfigError, match="CacheShape"):
        ost.CacheShape(*shape)


@pytest.mark.parametrize(
    "lengths", [[1.5, 2.0], ["1", "2"], [None, 1], 3, "12", np.array([1.0, 2.0]), [True, False], np.array([[1, 2]])]
)
def test_lengths_are_integers(exe: ost.TextExecutable, lengths: Any) -> None:
    with pytest.raises(ost.DTypeError, match="lengths"):
        exe(input_ids=np.ones((2, 3), np.int32), lengths=lengths)


@pytest.mark.parametrize("ids", [[[1, [2]]], [[1], None], ["abc"], [[2**70]]])
def test_rows_that_are_no_token_ids_are_refused(exe: ost.TextExecutable, ids: Any) -> None:
    with pytest.raises((ost.DTypeError, ost.ShapeError), match=r"input_ids\["):
        exe(input_ids=ids)


@pytest.mark.parametrize("outputs", ["logits", ["nothing"], 5, [3], [["logits"]]])
def test_outputs_are_asked_for_by_name(exe: ost.TextExecutable, outputs: Any) -> None:
    entry = next(iter(exe.entries))
    with pytest.raises(ost.InputError, match="output names"):
        exe.run(entry, {}, outputs)


@pytest.mark.parametrize("mode", ["planned", "eager", "reference"])
@pytest.mark.parametrize(
    ("name", "count"), [("token_count", 5), ("token_count", -1), ("row_count", 2), ("row_count", -1)]
)
def test_counts_beyond_their_axis_are_refused_in_every_mode(
    exe: ost.TextExecutable, mode: str, name: str, count: int
) -> None:
    entry = exe.bucket(2, 1)
    zeros = {b.name: np.zeros(b.type.static_shape, b.type.dtype.numpy) for b in entry.inputs}
    with pytest.raises(ost.BoundsError, match=f"{count} rows are said to be valid"):
        exe.clone(mode).run(entry.name, {**zeros, name: np.array([count], np.int32)})


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        5,
        b"hi",
        memoryview(b"hi"),
        {"prompt": [1]},
        {1, 2},
        np.array(5),
        [1.5, 2],
        [True, False],
        [None],
        [[1], 5],
        [[[1], [2, 3]]],
    ],
)
def test_prompts_of_the_wrong_kind_are_refused(llm: ost.LLM, prompts: Any) -> None:
    with pytest.raises((ost.DTypeError, ost.ShapeError)):
        llm.generate(prompts, GREEDY)


def test_a_model_that_samples_gives_its_logits_too(llm: ost.LLM, exe: ost.TextExecutable) -> None:
    """The entries of an LLM choose tokens; a forward call has nothing to say about how."""
    rows = [[1, 2, 3], [4]]
    np.testing.assert_array_equal(llm.executable(input_ids=rows)["logits"], exe(input_ids=rows)["logits"])


@pytest.mark.parametrize("entry", [["prefill"], 3, "no such entry", {}])
def test_an_entry_is_asked_for_by_name(exe: ost.TextExecutable, entry: Any) -> None:
    with pytest.raises(ost.ConfigError, match="no entry"):
        exe.run(entry, {})


def test_prompts_of_token_ids_come_in_every_container(llm: ost.LLM) -> None:
    expected = llm.generate([[1, 2, 3]], GREEDY)[0].token_ids
    ids = np.array([1, 2, 3])
    for prompts in (ids, ids.astype(np.uint8), ids[None], [ids], list(ids), (1, 2, 3), range(1, 4), (x for x in [ids])):
        assert llm.generate(prompts, GREEDY)[0].token_ids == expected  # type: ignore[arg-type]
    assert [event.token for event in llm.tokens([1, 2, 3], GREEDY)] == list(expected)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], "greedy", 3])
def test_sampling_parameters_are_of_their_class(llm: ost.LLM, params: Any) -> None:
    with pytest.raises(ost.ConfigError, match="sampling parameters"):
        llm.generate([[1]], params)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "hot"},
        {"temperature": None},
        {"temperature": True},
        {"temperature": 1e300},
        {"max_tokens": 1.5},
        {"max_tokens": "all"},
        {"min_tokens": None},
        {"top_k": 1.5},
        {"top_p": "x"},
        {"min_p": None},
        {"seed": 1.5},
        {"seed": True},
        {"stop_token_ids": 5},
        {"stop_token_ids": "5"},
        {"stop_token_ids": (1.0,)},
        {"stop": 5},
        {"stop": ["a", 5]},
        {"stop": b"a"},
        {"logit_bias": 5},
        {"logit_bias": {1: "a"}},
        {"logit_bias": {1.5: 1.0}},
        {"logprobs": True},
        {"repetition_penalty": None},
        {"ignore_eos": "no"},
        {"detokenize": 1},
    ],
)
def test_fields_of_sampling_parameters_have_their_types(options: dict[str, Any]) -> None:
    with pytest.raises(ost.ConfigError, match=next(iter(options))):
        ost.SamplingParams(**options)


def test_a_top_k_beyond_the_vocabulary_keeps_every_token(llm: ost.LLM) -> None:
    def tokens(top_k: int) -> tuple[int, ...]:
        params = ost.SamplingParams(max_tokens=8, top_k=top_k, seed=3, ignore_eos=True)
        return llm.generate([[1, 2]], params)[0].token_ids

    assert tokens(0) == tokens(96) == tokens(2**31) == tokens(2**70)


def test_every_token_held_back_is_refused_and_no_fault_of_the_logits(llm: ost.LLM) -> None:
    every = range(llm.executable.vocab_size)
    with pytest.raises(ost.ConfigError, match=r"prompt 0: min_tokens 1 holds back all 96 tokens"):
        llm.generate([[1]], ost.SamplingParams(min_tokens=1, stop_token_ids=every))
    (output,) = llm.generate([[1]], ost.SamplingParams(min_tokens=1, stop_token_ids=every[:-1], detokenize=False))
    assert output.token_ids[0] == every[-1]


def test_sampling_parameters_hold_plain_values() -> None:
    given: dict[str, Any] = {"max_tokens": np.int64(3), "temperature": np.float32(0.5), "stop_token_ids": [np.int32(4)]}
    params = ost.SamplingParams(**given, stop="a", logit_bias={7: 1, 2: -1.5})
    plain = ost.SamplingParams(
        max_tokens=3, temperature=0.5, stop_token_ids=(4,), stop=("a",), logit_bias=((2, -1.5), (7, 1.0))
    )
    assert hash(params) == hash(plain)
    assert pickle.loads(pickle.dumps(params)) == params
