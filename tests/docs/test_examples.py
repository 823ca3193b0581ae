"""The made-up family and the made-up operator of the documentation: their diffs apply, touch the files that the design promises and no others, and work.

What needs the operator's kernel, and with it a build, is in `.ci/examples`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.family import Family
from ostinato.frontend.models import FAMILIES
from ostinato.ir.types import Array, DType
from tests.docs.patched_tree import EXAMPLES, ROOT, apply, copy_tree, marked_blocks, run, touched
from tests.frontend.make_checkpoints import (
    Tensors,
    gguf_name,
    random_model,
    small_config,
    write_gguf,
    write_hf_checkpoint,
)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to apply a diff")
MODEL_PAGE, OPERATOR_PAGE = (ROOT / "docs" / f"bring-your-{what}.md" for what in ("model", "operator"))
PROMISED = {
    "fugue": {"ostinato/frontend/models/fugue.py", "ostinato/frontend/models/__init__.py"},
    "soften": {
        "ostinato/ir/ops/activation.py",
        "ostinato/backend_hip/impls/elementwise.py",
        "ostinato/backend_hip/native/kernels/elementwise.cpp",
    },
}
"""An entry, a row and a kernel; a file and its line in the list."""
IDS = [5, 17, 3, 92, 41, 8]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def hunks(text: str) -> list[str]:
    return re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@needs_git
@pytest.mark.parametrize("name", PROMISED)
def test_a_diff_applies_and_touches_what_is_promised(name: str, tmp_path: Path) -> None:
    tree, diff = copy_tree(tmp_path / "tree"), EXAMPLES / f"{name}.diff"
    before = contents(tree)
    apply(diff, tree)
    after = contents(tree)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == touched(diff) == PROMISED[name]


@pytest.mark.parametrize(("page", "name"), [(MODEL_PAGE, "fugue"), (OPERATOR_PAGE, "soften")])
def test_the_page_shows_its_diff(page: Path, name: str) -> None:
    text, diff = page.read_text(encoding="utf-8"), (EXAMPLES / f"{name}.diff").read_text(encoding="utf-8")
    shown = hunks(text)
    assert shown
    for hunk in shown:
        assert hunk in diff, f"{page.name} shows lines that docs/examples/{name}.diff does not have:\n{hunk}"
    written = [line for line in diff.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
    missing = [line for line in written if not any(line in hunk.splitlines() for hunk in shown)]
    assert not missing, f"{page.name} leaves out lines of docs/examples/{name}.diff: {missing}"


def test_the_page_shows_the_file_of_the_family() -> None:
    example = (EXAMPLES / "fugue.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```\n" in MODEL_PAGE.read_text(encoding="utf-8")


# the family


@pytest.fixture(scope="module")
def fugue() -> Family:
    specification = importlib.util.spec_from_file_location("fugue", EXAMPLES / "fugue.py")
    assert specification is not None
    assert specification.loader is not None
    module: ModuleType = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    found: Family = module.FUGUE
    return found


def make_fugue(seed: int) -> tuple[dict[str, Any], Tensors]:
    """A small configuration with biases, and its tensors: a Llama's without the second norm of a layer."""
    config = small_config("fugue", voices_biased=True)
    tensors = random_model(config | {"attention_bias": True}, seed)
    return config, {name: array for name, array in tensors.items() if "post_attention" not in name}


def expected_logits(config: Mapping[str, Any], tensors: Tensors, ids: list[int]) -> Array:
    """The model from its description in float64, with nothing of the package."""
    t = {name.removeprefix("model."): array.astype(np.float64) for name, array in tensors.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width, count = config["hidden_size"] // heads, len(ids)

    def norm(x: Array, gain: str) -> Array:
        y: Array = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config["rms_norm_eps"]) * t[f"{gain}.weight"]
        return y

    def linear(x: Array, name: str) -> Array:
        y: Array = x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0.0)
        return y

    angle = np.outer(np.arange(count), config["rope_theta"] ** (-np.arange(0, width, 2) / width))[:, None]
    later = np.triu(np.full((count, count), -np.inf), 1)

    def rotated(x: Array) -> Array:
        a, b = np.split(x.reshape(count, -1, width), 2, axis=-1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)

    def attention(x: Array, part: str) -> Array:
        q, k = rotated(linear(x, f"{part}.q_proj")), rotated(linear(x, f"{part}.k_proj"))
        v = linear(x, f"{part}.v_proj").reshape(count, -1, width)
        k, v = (np.repeat(array, heads // kv_heads, axis=1) for array in (k, v))
        scores = np.exp(np.einsum("thd,shd->hts", q, k) / np.sqrt(width) + later)
        weights = scores / scores.sum(axis=-1, keepdims=True)
        mixed: Array = np.einsum("hts,shd->thd", weights, v).reshape(count, -1)
        return linear(mixed, f"{part}.o_proj")

    def feed_forward(x: Array, part: str) -> Array:
        gate = linear(x, f"{part}.gate_proj")
        return linear(gate / (1 + np.exp(-gate)) * linear(x, f"{part}.up_proj"), f"{part}.down_proj")

    x = t["embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"layers.{layer}"
        y = norm(x, f"{prefix}.input_layernorm")
        x = x + attention(y, f"{prefix}.self_attn") + feed_forward(y, f"{prefix}.mlp")
    result: Array = norm(x, "norm") @ t["lm_head.weight"].T
    return result


def logits_of(model: ost.Model) -> Array:
    logits: Array = ost.compile(model, buckets={"B": [1], "T": [4]}, context=32, logits="all")(input_ids=[IDS])[
        "logits"
    ]
    only: Array = logits[0]
    return only


def as_gguf(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    stored = {gguf_name(name).replace("token_embd", "subject"): array for name, array in tensors.items()}
    return write_gguf(path, config, stored)


def test_the_family_runs_from_its_file_and_equals_its_description(fugue: Family, tmp_path: Path, seed: int) -> None:
    config, tensors = make_fugue(seed)
    model = ost.load(write_hf_checkpoint(tmp_path / "fugue", config, tensors), families=(*FAMILIES, fugue))
    assert model.family is fugue
    expected = expected_logits(config, tensors, IDS)
    found = logits_of(model)
    assert expected.std() > 0.1
    assert np.abs(found - expected).max() < 2e-4 * expected.std()
    theirs = ost.load(as_gguf(tmp_path / "fugue.gguf", config, tensors), families=(*FAMILIES, fugue))
    np.testing.assert_array_equal(logits_of(theirs), found)
    with pytest.raises(ost.ConfigError, match="'fugue' is not supported"):
        ost.load(tmp_path / "fugue")


IN_PACKAGE = """\
import sys
import numpy as np
import ostinato as ost
forward = ost.compile(ost.load(sys.argv[1]), buckets={"B": [1], "T": [4]}, context=32, logits="all")
np.save(sys.argv[2], forward(input_ids=[[5, 17, 3, 92, 41, 8]])["logits"][0])
print(ost.__file__)
"""


@needs_git
def test_the_family_in_the_package_gives_the_same_bits(fugue: Family, tmp_path: Path, seed: int) -> None:
    config, tensors = make_fugue(seed)
    checkpoint = write_hf_checkpoint(tmp_path / "fugue", config, tensors)
    tree = copy_tree(tmp_path / "tree")
    apply(EXAMPLES / "fugue.diff", tree)
    printed = run(tree, ["-c", IN_PACKAGE, str(checkpoint), str(tmp_path / "logits.npy")])
    assert Path(printed.strip()).is_relative_to(tree), "another tree was imported"
    expected = logits_of(ost.load(checkpoint, families=(*FAMILIES, fugue)))
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)


# the operator


@pytest.fixture(scope="module")
def softened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with the operator in its tables. Its kernel is not built, so it is known but cannot be run."""
    tree = copy_tree(tmp_path_factory.mktemp("softened") / "tree")
    apply(EXAMPLES / "soften.diff", tree)
    return tree


@needs_git
def test_the_operator_passes_the_checks_of_the_table(softened: Path) -> None:
    tests = ("tests/ir/test_ops.py", "tests/ir/test_ops_table.py")
    printed = run(softened, ["-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", "-k", "soften", *tests])
    passed = re.search(r"(\d+) passed", printed)
    assert passed is not None
    assert int(passed[1]) >= 8, printed


@needs_git
def test_what_the_page_says_of_the_reference_is_true(softened: Path) -> None:
    (block,) = marked_blocks(OPERATOR_PAGE, "patched")
    run(softened, ["-c", block])


@needs_git
def test_the_generated_page_and_the_public_module_learn_of_the_operator(softened: Path) -> None:
    program = "import ostinato.ops as ops, ostinato.tools.optable as t; print(t.render()); print(ops.soften.__doc__)"
    printed = run(softened, ["-c", program])
    assert "## soften\n" in printed
    assert "y = soften(x) {knee: float}" in printed
    assert "  knee: float\n" in printed


# the tables of the pages


def test_the_page_names_every_family_and_every_type_of_tensor() -> None:
    page = MODEL_PAGE.read_text(encoding="utf-8")
    for family in FAMILIES:
        rows = [line for line in page.splitlines() if line.startswith(f"| `{family.name}` |")]
        assert len(rows) == 1, f"docs/bring-your-model.md has no row for the family {family.name}"
        spellings = [*(s.model_type for s in family.huggingface), *(s.architecture for s in family.gguf)]
        missing = [name for name in (*spellings, *family.also) if name.removesuffix(" in GGUF files") not in rows[0]]
        assert not missing, f"the row of {family.name} does not name {missing}"
    named = next(line for line in page.splitlines() if line.startswith("| a `.gguf` file"))
    blocks = [dtype.value.upper() for dtype in DType if dtype.is_block]
    assert not [name for name in blocks if name not in named], f"the row of GGUF files does not name all of {blocks}"
