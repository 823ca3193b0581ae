"""The photographs of the documentation: real reports, opened, clicked and taken by a real browser.

`python -m tests.browser.photographs` makes docs/images/view-*.png and wrong-tokens.png anew; a test takes each of them of a small model, so that none can rot.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato.frontend.fresh import new_model
from ostinato.frontend.model import Model
from ostinato.frontend.training import TrainingShape
from ostinato.tools.profile.ceilings import measure_ceilings
from ostinato.tools.programs import plan_buckets
from ostinato.tools.view.subjects import Viewable
from ostinato.training import PlannedTraining, Recipe, plan_training
from tests.browser.chromium import Watched, missing, open_browser, open_report
from tests.docs.wrong_tokens import wrong_tokens

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"

SIZES: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A photograph: the report it is of, where it is opened, and what is done before it is taken. "{middle}" in `address` and `act` is a layer's number."""

    report: str
    address: str = ""
    act: tuple[str, ...] = ()
    dark: bool = False
    size: tuple[int, int] = (1440, 900)


_ONLY_LOWER = "document.body.classList.add('only-lower')"
_ONLY_UPPER = "document.body.classList.add('only-upper')"
SCENES: Mapping[str, Scene] = {
    "view-graph": Scene("forward", "node=layers.{middle}.attn.attention&lower=arena"),
    "view-training": Scene("training", "node=layers.{middle}.attn.attention&lower=arena", dark=True),
    "view-training-graph": Scene("training", "node=layers.{middle}.ffn.activated", (_ONLY_UPPER,), size=(1440, 1000)),
    "view-arena": Scene("training", "lower=arena", (_ONLY_LOWER,), size=(1440, 800)),
    "view-timeline": Scene("measured", "lower=timeline&node=layers.{middle}.ffn.activated", size=(1440, 900)),
    "view-addresses": Scene("measured", "lower=addresses", (_ONLY_LOWER,), size=(1440, 700)),
    "view-plan": Scene("training", "lower=plan", (_ONLY_LOWER,), size=(1440, 640)),
    "wrong-tokens": Scene("wrong tokens", "node=layers.0.unit&lower=arena", size=(1440, 900)),
    "view-difference": Scene("difference", "lower=diff", (_ONLY_LOWER,), size=(1440, 760)),
}


def make_reports(model: Model, trained: Model, folder: Path, *, tokens: int) -> dict[str, Path]:
    """The reports that the scenes are of: a model planned, the same measured, the training step of another, and what a limit of memory changes in that."""
    reports: dict[str, Path] = {}

    def write(name: str, subject: Viewable, **settings: Any) -> None:
        reports[name] = folder / f"{name}.html"
        ost.view(subject, reports[name], **settings)

    write(
        "forward",
        plan_buckets(model, {"B": [1], "T": [1, tokens]}, context=2 * tokens, precision="auto"),
        title="smollm2",
    )
    step = _training(trained, tokens, None)
    write("training", step, title="training step")
    arena = step.planned.plan.stats.arena_bytes
    write("difference", _training(trained, tokens, int(arena * 0.85)), before=step, title="15 % less arena")
    executable = ost.compile(model, buckets={"B": [1], "T": [tokens]}, context=2 * tokens, device="cpu")
    with wrong_tokens(folder) as wrong:
        write("wrong tokens", wrong, title="wrong tokens")
    profile = executable.profile()
    ceilings = measure_ceilings(executable.device, executable.mode, [profile])
    write("measured", executable, profile=profile, ceilings=ceilings, title="smollm2")
    return reports


def _training(model: Model, tokens: int, limit: int | None) -> PlannedTraining:
    return plan_training(model, Recipe(TrainingShape(2, tokens)), memory_limit=limit)


def take(
    browser: Any, scene: Scene, report: Path, file: Path, *, middle: int, watched: Watched, scale: float = 1.25
) -> None:
    """Takes one photograph."""
    address = scene.address.format(middle=middle)
    page = open_report(browser, report, watched=watched, address=address, dark=scene.dark, size=scene.size, scale=scale)
    for script in scene.act:
        page.evaluate(f"() => {{ {script}; }}")
    page.wait_for_timeout(300)
    page.screenshot(path=file)
    page.context.close()


def main() -> None:
    """Makes all of them, of the smollm2 package and of a model of its sizes to train; the times in them are those of this machine."""
    if needed := missing():
        sys.exit(f"needs {needed}")
    model, watched = ost.load("smollm2"), Watched()
    with tempfile.TemporaryDirectory() as place, open_browser() as browser:
        trained = new_model(Path(place) / "model", SIZES, blank=True)
        reports = make_reports(model, trained, Path(place), tokens=128)
        wanted = sys.argv[1:] or list(SCENES)
        for name in wanted:
            take(
                browser, SCENES[name], reports[SCENES[name].report], IMAGES / f"{name}.png", middle=12, watched=watched
            )
            print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1024:.0f} KiB")
    if not watched.nothing():
        sys.exit(str(watched))


if __name__ == "__main__":
    main()
