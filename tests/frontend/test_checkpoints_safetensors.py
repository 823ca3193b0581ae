"""The strict reader of one safetensors file: what the format allows, and every way a file can be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.frontend.checkpoints.files import MappedFile
from ostinato.frontend.checkpoints.safetensors_file import read_safetensors_header
from ostinato.ir.errors import BoundsError, DTypeError, LifecycleError, OstinatoError, WeightsError
from ostinato.ir.types import DType
from tests.frontend.make_checkpoints import write_safetensors


def write(path: Path, header: Any, payload: bytes = b"") -> Path:
    """A file with this header (JSON, or raw bytes) and payload."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return path


def entry(begin: int = 0, end: int = 8, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_files_of_the_public_writer_are_read_bit_exactly(tmp_path: Path, rng: np.random.Generator, dtype: Any) -> None:
    tensors = {f"t{i}": rng.normal(size=shape).astype(dtype) for i, shape in enumerate([(3, 5), (7,), (2, 1, 4), ()])}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    entries = read_safetensors_header(tmp_path / "model.safetensors")
    file = MappedFile(tmp_path / "model.safetensors")
    assert {found.name for found in entries} == set(tensors)
    for found in entries:
        expected = tensors[found.name]
        assert (found.shape, found.dtype) == (expected.shape, DType.of(dtype))
        assert file.view(found.offset, found.nbytes).tobytes() == expected.tobytes()
    file.close()


def test_empty_tensors_are_legal(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"a": entry(0, 0, shape=(0, 4)), "b": entry(0, 8)}, bytes(8))
    assert [found.nbytes for found in read_safetensors_header(path)] == [0, 8]
    file = MappedFile(path)
    assert file.view(file.size, 0).size == 0


@pytest.mark.parametrize(
    ("header", "payload", "message"),
    [
        (b"{", 0, "not valid JSON|too short"),
        (b"not json at all", 8, "not valid JSON"),
        (b'{"a": \xff\xfe}', 8, "not valid JSON"),
        (b"[" * 100_000, 0, "nested too deeply"),
        (b"[]      ", 8, "expected an object"),
        ({}, 8, "holds no tensors"),
        ({"__metadata__": {"format": "pt"}}, 8, "holds no tensors"),
        ({"__metadata__": {"format": 1}, "a": entry()}, 8, "__metadata__"),
        (
            b'{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            8,
            "'a' appears twice",
        ),
        ({"": entry()}, 8, "empty name"),
        ({"a": 3}, 8, "expected exactly dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "expected exactly"),
        ({"a": entry(shape=[-2])}, 8, "non-negative"),
        ({"a": entry(shape=[2.0])}, 8, "non-negative"),
        ({"a": entry(shape=[True, 2])}, 8, "non-negative"),
        ({"a": entry(shape="2")}, 8, "non-negative"),
        ({"a": {**entry(), "data_offsets": [0, 4, 8]}}, 8, "two ascending"),
        ({"a": {**entry(), "data_offsets": [8, 0]}}, 8, "two ascending"),
        ({"a": {**entry(), "data_offsets": [-8, 0]}}, 8, "two ascending"),
        ({"a": entry(shape=(3,))}, 8, r"8 bytes stored, f32\[3\] needs 12"),
        ({"a": entry(shape=(2**40, 2**40))}, 8, "needs"),
        ({"a": entry(dtype=7)}, 8, "dtype 7"),
        ({"a": entry(), "b": entry(4, 12)}, 12, "b overlaps the tensor before it by 4 bytes"),
        ({"a": entry(), "b": entry()}, 8, "overlaps the tensor before it by 8 bytes"),
        ({"a": entry(), "b": entry(12, 20)}, 20, "4 bytes before b belong to no tensor"),
        ({"a": entry(4, 12)}, 12, "4 bytes before a belong to no tensor"),
        ({"a": entry()}, 4, "cut short"),
        ({"a": entry()}, 12, "longer than its header says"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, header: Any, payload: int, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_safetensors_header(write(tmp_path / "x.safetensors", header, bytes(payload)))


def test_a_shard_cut_by_100_bytes_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.zeros((64, 4), dtype=np.float32)})
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=f"a file of {size} bytes, the file has {size - 100}"):
        read_safetensors_header(path)


@pytest.mark.parametrize("length", [0, 1, 40, 2**31, 100_000_001, 2**63, 2**64 - 1])
def test_bad_header_lengths_are_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(20))
    with pytest.raises(WeightsError, match="header length"):
        read_safetensors_header(path)


@pytest.mark.parametrize("content", [b"", b"1234567", bytes(9)])
def test_files_too_short_for_a_header_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"empty|too short"):
        read_safetensors_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 988097824\n",
            "Git LFS pointer of a 988097824 byte file",
        ),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x80\x02}q\x00." + bytes(60), "pickle"),
        (b"GGUF" + bytes(60), "a GGUF file"),
    ],
)
def test_other_kinds_of_file_are_called_what_they_are(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_safetensors_header(path)


@pytest.mark.parametrize("dtype", ["F64", "I64", "I8", "F8_E4M3", "Q9"])
def test_unsupported_dtypes_name_the_tensor(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "x", {"good": entry(), "bad": entry(8, 16, dtype=dtype)}, bytes(16))
    with pytest.raises(DTypeError, match=f"{dtype} in bad"):
        read_safetensors_header(path)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read"):
        read_safetensors_header(tmp_path / "absent")
    with pytest.raises(WeightsError, match="not a regular file"):
        read_safetensors_header(tmp_path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_any_changed_byte_or_cut_gives_a_typed_error_or_the_same_layout(
    tmp_path: Path, position: int, value: int, cut: int
) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": np.ones((4, 4), dtype=np.float32), "b": np.ones(8, dtype=np.float16)})
    content = bytearray(path.read_bytes())
    content[min(position, len(content) - 1)] = value
    path.write_bytes(bytes(content[: max(1, len(content) - cut)]))
    try:
        entries = read_safetensors_header(path)
    except OstinatoError:
        return
    assert max(found.offset + found.nbytes for found in entries) == path.stat().st_size


def test_views_are_read_only_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(64)))
    file = MappedFile(path)
    view = file.view(8, 16)
    assert view.tolist() == list(range(8, 24))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    for offset, nbytes in ((-1, 4), (60, 8), (0, -1), (65, 0)):
        with pytest.raises(BoundsError):
            file.view(offset, nbytes)
    file.release(8, 16)
    assert view.tolist() == list(range(8, 24))
    file.close()
    file.close()
    assert view[0] == 8  # views outlive the file object
    with pytest.raises(LifecycleError):
        file.view(0, 1)


def test_a_file_that_shrinks_while_open_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    file = MappedFile(path)
    with path.open("r+b") as writer:
        writer.truncate(10)
    with pytest.raises(WeightsError, match="changed while it was open: 100000 bytes before, 10 now"):
        file.view(50_000, 100)
