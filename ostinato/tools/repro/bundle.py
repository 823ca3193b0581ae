"""The folder of a repro bundle: `repro.json`, `graph.txt`, `values.safetensors`, for faults of places `plan.json`, and a `README.txt`.

Everything that is read has its sha256 in `repro.json`, so that damage is an error with the file's name and not another outcome. Nothing in a bundle is code:
the graph is text, values are numbers, and a plan is made anew from graph and places (`plan.json` is for people and for `ostinato diff`). A bundle is written
beside its place and moved there, so that there is never half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from ostinato.frontend.checkpoints.safetensors_file import read_safetensors_header
from ostinato.ir.errors import ConfigError, OstinatoError, StaleArtifact, WeightsError
from ostinato.ir.graph import Graph, GraphInput, Role
from ostinato.ir.ops import OP
from ostinato.ir.safetensors import file_blocks
from ostinato.ir.text import parse_graph, print_graph
from ostinato.ir.types import Array, TensorType
from ostinato.ir.verify import verify
from ostinato.ir.weights import WeightPart
from ostinato.tools.repro.cut import Cut
from ostinato.tools.repro.report import FORMAT, VERSION, Needs, ReproFile, required_text

__all__ = ["Bundle", "need_new_folder", "read_bundle", "require_code", "write_bundle"]

_ABOUT, _GRAPH, _VALUES, _PLAN, _README = "repro.json", "graph.txt", "values.safetensors", "plan.json", "README.txt"
_SAVED = "saved/"
"""What stands before the names of values that are saved as right."""
_AGAIN = "make the bundle again with `ostinato bisect`"
_MOST_TEXT = 64 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle in memory. `saved` are outputs that are right, where the bundle has them."""

    about: ReproFile
    cut: Cut
    saved: Mapping[str, Array]


def need_new_folder(path: Path) -> None:
    """Raises `ConfigError` for a place where no bundle can be written: something is there already."""
    try:
        taken = any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        taken = os.path.lexists(path)
    except (OSError, ValueError) as error:  # a name that no system can hold is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be written: {reason}", hint="name a writable place") from None
    if taken:
        raise ConfigError(f"{path} is there already", hint="name a folder that does not exist, or is empty")
    above = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: {above} is no writable folder", hint="name a writable place")


def write_bundle(bundle: Bundle, path: Path, plan: str = "") -> ReproFile:
    """Writes a bundle as a folder, and returns what its `repro.json` says. `plan` is the JSON of the plan, where places are the fault.

    Raises `ConfigError` for a place where something is already, or that cannot be written.
    """
    need_new_folder(path)
    values = dict(bundle.cut.values) | {_SAVED + name: array for name, array in bundle.saved.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            about = _fill(folder, bundle, values, plan, path.name)
            folder.chmod(0o755)
            if path.is_dir():
                path.rmdir()
            os.replace(folder, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}", hint="name a writable place"
        ) from None
    return about


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle, all of it checked.

    Raises `ConfigError` for what is no bundle, `StaleArtifact` for one of another version, `WeightsError` for files that are missing, damaged or do not fit,
    and what reading and verifying the graph raise.
    """
    about = _about(path)
    require_code(about.needs, [f"operator {name}" for name in about.needs.operators if name not in OP])
    graph_text, values_file = _checked(path, about, _GRAPH), _checked(path, about, _VALUES)
    graph = parse_graph(_text(graph_text))
    verify(graph)
    values, saved = _values(values_file, graph)
    if "saved" in (about.left, about.right) and saved.keys() != set(graph.outputs):
        missing = sorted(set(graph.outputs) - saved.keys())
        raise WeightsError(f"{values_file} has no saved values of {missing}", hint=_AGAIN)
    return Bundle(about, Cut(graph, values, about.rows, about.places), saved)


def require_code(needs: Needs, missing: Sequence[str]) -> None:
    """Raises `ConfigError` where code of the user's is missing that a bundle needs."""
    if missing:
        told = f" (it was {needs.extension})" if needs.extension else ""
        raise ConfigError(
            f"the bundle needs {', '.join(missing)}, which the library does not have",
            hint=f"give --extension module:function, which adds them with ostinato.extend{told}",
        )


def _fill(folder: Path, bundle: Bundle, values: Mapping[str, Array], plan: str, name: str) -> ReproFile:
    (folder / _GRAPH).write_text(print_graph(bundle.cut.graph), encoding="utf-8")
    with (folder / _VALUES).open("wb") as file:
        for block in file_blocks(values):
            file.write(block)
    if plan:
        (folder / _PLAN).write_text(plan, encoding="utf-8")
    files = {item: _sha256(folder / item) for item in (_GRAPH, _VALUES, _PLAN) if (folder / item).exists()}
    about = bundle.about.model_copy(update={"files": files})
    (folder / _ABOUT).write_text(about.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / _README).write_text(_readme(about, name), encoding="utf-8")
    return about


def _about(path: Path) -> ReproFile:
    if not os.path.isdir(path):  # which is none for a name that no system can hold, too
        raise ConfigError(f"{path} is no folder", hint=f"a bundle is a folder with a {_ABOUT}")
    if not (path / _ABOUT).is_file():
        raise ConfigError(f"{path} has no {_ABOUT}", hint="give the folder that `ostinato bisect --output` wrote")
    text = _text(path / _ABOUT)
    try:
        return ReproFile.model_validate_json(text)
    except ValidationError as error:
        version = _version(text)
        if version not in (None, VERSION):
            raise StaleArtifact(
                f"{path} is a bundle of another version",
                differences=(f"version: the bundle has {version}, this library reads {VERSION}",),
                hint=_AGAIN,
            ) from None
        items = [f"{'.'.join(map(str, item['loc'])) or 'text'}: {item['msg']}" for item in error.errors()[:4]]
        raise ConfigError(f"{path / _ABOUT} is no bundle of format {FORMAT}: {'; '.join(items)}", hint=_AGAIN) from None


def _version(text: str) -> object:
    """The version that a text states, None where it states none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found.get("version") if isinstance(found, dict) and found.get("format") == FORMAT else None


def _checked(path: Path, about: ReproFile, name: str) -> Path:
    """A file of the bundle that is what it was when it was written."""
    file = path / name
    if name not in about.files:
        raise ConfigError(f"{path / _ABOUT} says nothing of {name}", hint=_AGAIN)
    if not file.is_file():
        raise WeightsError(f"{file} is missing", hint=_AGAIN)
    if (found := _sha256(file)) != about.files[name]:
        raise WeightsError(f"{file} was changed: its sha256 is {found}, stated is {about.files[name]}", hint=_AGAIN)
    return file


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_TEXT:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes", hint=f"at most {_MOST_TEXT} are read")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}", hint=_AGAIN) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}", hint="check the path") from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}", hint="check the path") from None
    return digest.hexdigest()


def _values(path: Path, graph: Graph) -> tuple[dict[str, Array], dict[str, Array]]:
    """The values of the graph's inputs, and those that are saved as right. Raises `WeightsError` for what is missing, too much or of another type."""
    entries = {entry.name: entry for entry in read_safetensors_header(path, lambda name: True)}
    wanted = {item.value.name: item.value.type for item in graph.inputs if item.role is not Role.CONSTANT}
    outputs = {_SAVED + name: graph.types[name] for name in graph.outputs}
    problems = [f"%{item.value.name} is made of other tensors than itself" for item in graph.inputs if _foreign(item)]
    problems += [f"%{name} has no values" for name in wanted if name not in entries]
    problems += [f"{name!r} is no input or output" for name in entries if name not in wanted and name not in outputs]
    found: dict[str, Array] = {}
    for name, tensor in (wanted | outputs).items():
        entry = entries.get(name)
        if entry is None:
            continue
        shape, dtype = _stored(tensor)
        if entry.dtype.numpy != dtype or (name in wanted and entry.shape != shape):
            problems.append(f"%{name}: {tensor}, the values are {entry.dtype.value}{list(entry.shape)}")
            continue
        raw = np.fromfile(path, np.uint8, entry.nbytes, offset=entry.offset)
        found[name] = raw.view(dtype).reshape(entry.shape)
    if problems:
        raise WeightsError(f"{path} does not fit the graph: {'; '.join(problems[:5])}", hint=_AGAIN)
    saved = {name.removeprefix(_SAVED): array for name, array in found.items() if name in outputs}
    return {name: array for name, array in found.items() if name in wanted}, saved


def _foreign(item: GraphInput) -> bool:
    """Whether an input reads tensors that a bundle does not have: a weight is all of its own values, and parameters there are none."""
    if item.role is not Role.WEIGHT:
        return item.role is Role.PARAMETER
    shape = item.value.type.static_shape
    return item.parts != (WeightPart(item.value.name, 0, shape[0] if shape else 1),)


def _stored(tensor: TensorType) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and dtype of a value in the file: blocks are rows of bytes."""
    shape = tensor.static_shape
    if tensor.dtype.is_block:
        try:
            return (*shape[:-1], tensor.dtype.nbytes(shape[-1])), np.dtype(np.uint8)
        except (OstinatoError, IndexError) as error:
            raise WeightsError(f"{tensor} does not hold whole blocks", hint=_AGAIN) from error
    return shape, tensor.dtype.numpy


def _readme(about: ReproFile, folder: str) -> str:
    adds = about.needs.extension or "MODULE:FUNCTION"
    lines = [
        "A repro bundle of Ostinato: a few operators of a model, with the values that they read, that show a fault.",
        "",
        f"Fault     {about.fault}",
        f"Model     {about.model or '-'} (entry {about.entry}), not needed to run this",
        f"Compares  {about.left} with {about.right}, {required_text(about.absolute, about.relative)}",
        f"Expected  {about.expected}",
        f"Made on   {about.environment.target} ({about.environment.isa}), library {about.environment.library}",
        "",
        "Run it in the folder above this one (exit code 0: the expected outcome, 1: another one):",
        "",
        f"    ostinato repro {folder}{f' --extension {adds}' if about.needs.any else ''}",
        "",
    ]
    if about.needs.any:
        missing = [f"operator {name}" for name in about.needs.operators] + [f"row {name}" for name in about.needs.rows]
        lines += [
            f"It needs code that is not in the library: {', '.join(missing)}.",
            f"{adds} names a function without arguments that adds it with ostinato.extend.",
            "",
        ]
    lines += [
        f"{_GRAPH:<20}the operators, in the text form of graphs",
        f"{_VALUES:<20}their inputs and weights"
        + (f"; {_SAVED}NAME: outputs that are right" if about.left == "saved" else ""),
        f"{_ABOUT:<20}what was compared, where, and the sha256 of the other files",
    ]
    if _PLAN in about.files:
        lines.append(f"{_PLAN:<20}the plan, whose places are the fault")
    return "\n".join([*lines, ""])
