"""Names, entry points and assembled texts of device kernels."""

from __future__ import annotations

import re

import pytest

from ostinato.backend_hip.kernel_source import (
    KERNELS,
    Instance,
    KernelName,
    assemble,
    expanded,
    instance_of,
    kernel_files,
    kernel_name,
    modules,
    source_hash,
)
from ostinato.ir.errors import BackendError
from ostinato.ir.step import Launch

LAUNCH = Launch((4, 1, 1), (256, 1, 1))


def test_a_name_says_file_function_and_types() -> None:
    text = kernel_name("attention/attention", "attention_packed", 1, "f32", "bf16", "f32")
    assert text == "attention/attention:attention_packed<1,f32,bf16,f32>"
    found = KernelName.parse(text)
    assert (found.file, found.function, found.arguments) == (
        "attention/attention",
        "attention_packed",
        ("1", "f32", "bf16", "f32"),
    )
    assert found.symbol == "attention_packed_1_f32_bf16_f32"
    assert str(found) == text
    plain = kernel_name("selection/selection", "argmax")
    assert plain == "selection/selection:argmax"
    assert KernelName.parse(plain).symbol == "argmax"


@pytest.mark.parametrize("text", ["rms_norm", "norm:rms_norm", "norm/norm:rms_norm<>", "norm/norm:f<a b>", "a/b:c<d>;"])
def test_other_texts_are_no_names(text: str) -> None:
    with pytest.raises(BackendError, match="no name of a device kernel"):
        KernelName.parse(text)


def test_an_entry_point_has_operands_parameters_and_status_in_order() -> None:
    instance = instance_of("norm/norm:rms_norm<f32,bf16>", 4, (3, 1, 64, 1e-5), LAUNCH)
    assert instance.text == (
        "KERNEL(rms_norm_f32_bf16, 256, (void* a0, void* a1, void* a2, void* a3, i64 p0, i64 p1, i64 p2, f64 p3, u32* status, u32 step), "
        "(rms_norm<f32, bf16>(Pointer{a0}, Pointer{a1}, Pointer{a2}, Pointer{a3}, p0, p1, p2, p3, Start{status, step})))"
    )


def test_modules_gather_the_instances_of_a_file_once_and_in_order() -> None:
    names = ("norm/norm:rms_norm<f32,f32>", "cache/cache:kv_store<f32,f32>", "norm/norm:rms_norm<bf16,f32>")
    wanted = [instance_of(name, 4, (1, 2.0), LAUNCH) for name in (*names, names[0])]
    found = modules(wanted)
    assert list(found) == ["cache/cache", "norm/norm"]
    assert re.findall(r"^KERNEL\((\w+)", found["norm/norm"], re.MULTILINE) == ["rms_norm_bf16_f32", "rms_norm_f32_f32"]
    assert found == modules(reversed(wanted)), "the order of steps does not change a source"


@pytest.mark.parametrize(
    "other",
    [
        instance_of("norm/norm:rms_norm<f32,f32>", 5, (1, 2.0), LAUNCH),
        instance_of("norm/norm:rms_norm<f32,f32>", 4, (1, 2), LAUNCH),
        instance_of("norm/norm:rms_norm<f32,f32>", 4, (1, 2.0), Launch((4, 1, 1), (128, 1, 1))),
    ],
)
def test_one_symbol_has_one_form(other: Instance) -> None:
    one = instance_of("norm/norm:rms_norm<f32,f32>", 4, (1, 2.0), LAUNCH)
    with pytest.raises(BackendError, match="rms_norm<f32,f32> is asked for as"):
        modules([one, other])


def test_a_source_stands_alone() -> None:
    """Headers stand where they are first included, once, and nothing else is included: run-time compilers have no folders."""
    for file in kernel_files():
        text = expanded(f"{file}.hip")
        assert "#include" not in text
        assert "#pragma once" not in text
        assert text.count('#line 1 "device.h"') == 1
        assert f'"{file}.hip"' in text.splitlines()[0]


def test_lines_keep_their_numbers() -> None:
    """What a compiler says of a line is true of the file."""
    file, wanted = "linear/linear.hip", "DEVICE void linear_swiglu("
    own = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    number, place = 0, ""
    for line in expanded(file).splitlines():
        found = re.fullmatch(r'#line (\d+) "(.+)"', line)
        if found is not None:
            number, place = int(found[1]), found[2]
            continue
        if place == file:
            assert own[number - 1] == line or line == "", f"line {number}"
        if line.startswith(wanted):
            assert place == file
            assert own[number - 1].startswith(wanted)
        number += 1


def test_an_unknown_file_is_named_with_those_there_are() -> None:
    with pytest.raises(BackendError, match="no kernel file norm/other") as caught:
        assemble("norm/other", [])
    assert caught.value.hint is not None
    assert "norm/norm" in caught.value.hint


def test_a_hash_is_of_its_parts_and_not_of_their_sum() -> None:
    assert source_hash("ab", "c") != source_hash("a", "bc")
    assert source_hash("ab", "c") == source_hash("ab", "c")
