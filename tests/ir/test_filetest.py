"""The runner of `*.ir` files does what it says: it fails where it must, and blesses only the expected part."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.ir.errors import TextError, VerificationError
from tests.filetest import FileTestFailure, run_file

GRAPH = "graph @g {\n  input %x: f32[4]\n  %y: f32[4] = silu(%x)\n  return %y\n}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "case.ir"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_difference_is_shown_and_blessed(tmp_path: Path) -> None:
    text = f"Prose.\n# run:\n{GRAPH}\n# expect\n{GRAPH.replace('silu', 'cast')}"
    path = write(tmp_path, text)
    with pytest.raises(FileTestFailure, match=r"(?s)--bless.*\+  %y: f32\[4\] = silu"):
        run_file(path)
    assert path.read_text(encoding="utf-8") == text
    run_file(path, bless=True)
    assert path.read_text(encoding="utf-8") == f"Prose.\n# run:\n{GRAPH}\n# expect\n{GRAPH}"
    run_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# run:\n", "no line begins with 'graph'"),
        (GRAPH, "no '# run:' header"),
        (f"# run:\n{GRAPH}", "announces errors"),
        (f"# run:\n{GRAPH.replace('(%x)', '(%x)  # error[V03]: table')}", "line 4: did not come: error[V03]: table"),
        (f"# run:\n{GRAPH.replace('silu(%x)', 'odd(%x)  # error[V04]: table')}", "line 4: not announced: V03"),
        (f"# run:\n{GRAPH.replace('silu(%x)', 'odd(%x)  # error[V03]: other')}", "line 4: not announced: V03"),
        (
            "# run:\n" + GRAPH.replace("silu(%x)", "odd(%x)").replace("%y\n", "%y  # error[V03]: table\n"),
            "line 4: not announced",
        ),
        (f"# run:\n{GRAPH.replace('silu', '')}# error[V03]: table", "line 4: not announced: line 3, column 16"),
    ],
)
def test_what_was_not_promised_fails(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileTestFailure) as caught:
        run_file(write(tmp_path, text))
    assert message in str(caught.value)


def test_inputs_of_pass_tests_must_be_sound(tmp_path: Path) -> None:
    with pytest.raises(VerificationError):
        run_file(write(tmp_path, f"# run:\n{GRAPH.replace('silu', 'odd')}\n# expect\n{GRAPH}"))
    with pytest.raises(TextError):
        run_file(write(tmp_path, f"# run:\n{GRAPH.replace('silu', '')}\n# expect\n{GRAPH}"))
    with pytest.raises(VerificationError, match="phase laid_out"):
        run_file(write(tmp_path, f"# run:\n# phase: laid_out\n{GRAPH}\n# expect\n{GRAPH}"))
