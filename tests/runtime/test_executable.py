"""Calls of a compiled model: buckets, kinds of input, bad input, and what survives it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ostinato as ost

IDS = np.array([[3, 14, 15, 9, 26]], np.int64)


def test_result_does_not_depend_on_bucket_padding_or_integer_width(
    tiny: ost.TextExecutable, tiny_model: ost.Model
) -> None:
    expected = tiny(input_ids=IDS)["logits"]
    assert expected.shape == (1, 96)
    assert expected.dtype == np.float32
    padded = np.full((1, 12), -7, np.int32)  # what lies past a length is never read
    padded[:, :5] = IDS
    assert tiny(input_ids=padded, lengths=[5])["logits"].tobytes() == expected.tobytes()
    assert tiny(input_ids=IDS.tolist())["logits"].tobytes() == expected.tobytes()
    wide = ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64)
    np.testing.assert_allclose(wide(input_ids=IDS)["logits"], expected, rtol=0, atol=1e-5)


def test_an_executable_says_what_it_is(tiny: ost.TextExecutable) -> None:
    assert repr(tiny) == f"<TextExecutable of {', '.join(tiny.entries)}: {tiny.mode} on {tiny.device.name}>"


def test_longer_prompts_are_chunked(tiny: ost.TextExecutable, tiny_model: ost.Model) -> None:
    ids = np.arange(50, dtype=np.int32)[None]
    whole = ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64, logits="all")
    chunked = ost.compile(tiny_model, buckets={"B": [1], "T": [8]}, context=64, logits="all")
    expected = whole(input_ids=ids)["logits"]
    assert expected.shape == (1, 50, 96)
    np.testing.assert_allclose(chunked(input_ids=ids)["logits"], expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(tiny(input_ids=ids)["logits"][0], expected[0, -1], rtol=0, atol=2e-5)


def test_repeated_calls_start_from_an_empty_cache(tiny: ost.TextExecutable) -> None:
    first = tiny(input_ids=IDS)["logits"]
    tiny(input_ids=np.full((1, 40), 90, np.int32))
    again = tiny(input_ids=IDS)["logits"]
    assert first.tobytes() == again.tobytes()


def test_poison_past_the_valid_tokens_never_matters(tiny: ost.TextExecutable) -> None:
    expected = tiny(input_ids=IDS)["logits"]
    for region in (tiny.regions.arena, tiny.regions.io, tiny.regions.state):
        region.fill(0xFF)
    assert tiny(input_ids=IDS)["logits"].tobytes() == expected.tobytes()


def test_zero_rows_and_empty_rows_give_empty_results(tiny: ost.TextExecutable) -> None:
    assert tiny(input_ids=np.zeros((0, 4), np.int32))["logits"].shape == (0, 96)
    mixed = tiny(input_ids=[[], IDS[0].tolist()])["logits"]
    assert not mixed[0].any()
    np.testing.assert_allclose(mixed[1], tiny(input_ids=IDS)["logits"][0], rtol=0, atol=1e-5)


def test_outputs_are_the_callers(tiny: ost.TextExecutable) -> None:
    first = tiny(input_ids=IDS)["logits"]
    kept = first.copy()
    tiny(input_ids=IDS + 1)
    assert first.tobytes() == kept.tobytes()


@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [
        (np.array([[1, 96]]), ost.BoundsError, "token id 96 at index 1 is outside the vocabulary of 96"),
        (np.array([[-1, 2]]), ost.BoundsError, "token id -1 at index 0"),
        (np.array([[2**40]]), ost.BoundsError, "do not fit int32"),
        (np.array([1, 2]), ost.ShapeError, r"expected \[batch, tokens\]"),
        (np.array([[1.0]]), ost.DTypeError, "expected int32 or int64"),
        (np.ones((1, 65), np.int32), ost.CapacityError, "65 tokens, the context is 64"),
        (np.ones((3, 2), np.int32), ost.CapacityError, "3 rows, the largest bucket has 2"),
        ("text", ost.DTypeError, "expected an array"),
    ],
)
def test_bad_input_is_a_typed_error_and_the_next_call_works(
    tiny: ost.TextExecutable, ids: object, error: type[Exception], text: str
) -> None:
    expected = tiny(input_ids=IDS)["logits"]
    with pytest.raises(error, match=text):
        tiny(input_ids=ids)
    assert tiny(input_ids=IDS)["logits"].tobytes() == expected.tobytes()


def test_entry_inputs_are_checked_by_name(tiny: ost.TextExecutable) -> None:
    name = next(iter(tiny.entries))
    with pytest.raises(ost.InputError, match="missing inputs"):
        tiny.run(name, {})
    with pytest.raises(ost.ConfigError, match="no entry 'nothing'"):
        tiny.run("nothing", {})


def test_indices_out_of_range_in_a_step_are_an_error_and_memory_stays_in_bounds(tiny: ost.TextExecutable) -> None:
    from ostinato.runtime.batch import Piece, pack

    expected = tiny(input_ids=IDS)["logits"]
    plan = tiny.bucket(2, 1)
    inputs, _ = pack(plan, [Piece(0, np.array([1, 2], np.int32), 0, True)], tiny.block_table())
    for name, value in (("input_ids", 10_000), ("position", 1 << 20), ("block_table", 77)):
        broken = {**inputs, name: np.full_like(inputs[name], value)}
        with pytest.raises(ost.BoundsError):
            tiny.run(plan.name, broken)
    assert tiny(input_ids=IDS)["logits"].tobytes() == expected.tobytes()


def test_concurrent_call_is_refused_and_a_clone_runs_beside(tiny: ost.TextExecutable) -> None:
    expected = tiny(input_ids=IDS)["logits"]
    clone = tiny.clone()
    assert clone.regions.shared is tiny.regions.shared
    with tiny.exclusive():
        found: list[BaseException] = []

        def call() -> None:
            try:
                tiny(input_ids=IDS)
            except ost.LifecycleError as error:
                found.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert "running another call" in str(found[0])
        assert clone(input_ids=IDS)["logits"].tobytes() == expected.tobytes()


def test_memory_report_adds_up(tiny: ost.TextExecutable) -> None:
    memory = tiny.memory
    assert memory.weights > 0
    assert memory.arena >= memory.lower_bound > 0
    assert memory.total == memory.weights + memory.arena + memory.state + memory.io + memory.constants


def test_a_gpu_that_is_not_there_is_refused(tiny_model: ost.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opening a vendor's libraries, which a process has from one place alone."""

    def no_card(platform: str | None) -> None:
        raise ost.DeviceUnavailable(f"no GPU can be used, of {platform or 'any vendor'}")

    monkeypatch.setattr("ostinato.backend_hip.open._with_a_card", no_card)
    for name in ("hip", "hip:1"):
        with pytest.raises(ost.DeviceUnavailable, match="no GPU can be used"):
            ost.compile(tiny_model, device=name)


def test_modes_say_what_runs_and_why(tiny_model: ost.Model) -> None:
    assert ost.compile(tiny_model, mode="planned").reason == ""
    assert ost.compile(tiny_model).mode == "planned"
    fallback = ost.compile(tiny_model, mode="captured")
    assert fallback.mode == "planned"
    assert "captured needs a GPU" in fallback.reason
    assert "captured needs a GPU" in ost.compile(tiny_model, capture=["ffn"]).reason
    for asked in ({"mode": "captured"}, {"capture": ["ffn"]}):
        with pytest.raises(ost.ConfigError, match="captured needs a GPU"):
            ost.compile(tiny_model, **asked, on_fallback="raise")
    with pytest.raises(ost.ConfigError, match="mode 'fast' is unknown"):
        ost.compile(tiny_model, mode="fast")
    with pytest.raises(ost.ConfigError, match="context 100000 is outside"):
        ost.compile(tiny_model, context=100_000)
    with pytest.raises(ost.ConfigError, match="buckets"):
        ost.compile(tiny_model, buckets={"B": [0], "T": [4]})
    with pytest.raises(ost.ConfigError, match="unknown precision 'f8'"):
        ost.compile(tiny_model, precision="f8")
