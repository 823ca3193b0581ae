"""The file that `ostinato train` reads: TOML of four sections, every key checked before anything is made.

A key that is not known is an error that names the closest one that is. Paths are relative to the file. Which keys results depend on is said here too: a
checkpoint keeps those, and a run that goes on must have them alike.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ostinato.ir.checks import byte_count
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import read_text
from ostinato.runtime.training.optimizer import MOST_STEPS, SGD, AdamW, Optimizer

__all__ = ["DataSection", "ModelSection", "NewModel", "Sample", "TrainConfig", "TrainSection", "read_config"]

_MOST_PROBLEMS = 12
_Size = Annotated[int | str, Field(union_mode="left_to_right")]
Positive = Annotated[int, Field(ge=1)]
_M = TypeVar("_M", bound=BaseModel)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NewModel(_Section):
    """[model.new]: a model with random weights. `config` is a `config.json` as its family spells it.

    `tokenizer`: "bytes", or "train", which learns `vocab_size` tokens from the training text.
    """

    config: dict[str, Any]
    tokenizer: Literal["bytes", "train"] = "bytes"
    vocab_size: Positive | None = None
    seed: int = Field(default=0, ge=0)
    dtype: Literal["f32", "bf16", "f16"] = "f32"

    @model_validator(mode="after")
    def _learned(self) -> Self:
        if self.vocab_size is not None and self.tokenizer != "train":
            raise ValueError('vocab_size is of tokenizer = "train"')
        return self


class ModelSection(_Section):
    """[model]: the model to go on from (`path`, a Hugging Face directory), or a `new` one."""

    path: str | None = None
    new: NewModel | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.new is None):
            raise ValueError("give path or new, one of them")
        return self


class DataSection(_Section):
    """[data]: where tokens come from (one of the first five keys), and how they are dealt out.

    `files` are texts, by name or pattern; `stdlib` is how many bytes of the standard library's own source; `tokens` are files of token ids; `chat` are
    .jsonl files of conversations, of whose messages the answers are learned.
    """

    files: list[str] | None = None
    text: str | None = None
    tokens: list[str] | None = None
    stdlib: _Size | None = None
    chat: list[str] | None = None
    tokens_dtype: Literal["uint16", "int32"] | None = None
    learn: Literal["all", "last"] = "all"
    pack: bool = False
    truncate: bool = False
    batch: Positive
    sequence: Positive
    micro_batches: Positive = 1
    seed: int = 0
    shuffle: bool = True

    @model_validator(mode="after")
    def _one(self) -> Self:
        sources = ("files", "text", "tokens", "stdlib", "chat")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(sources)}, found {', '.join(given) or 'none'}")
        if self.tokens_dtype is not None and self.tokens is None:
            raise ValueError("tokens_dtype is of tokens")
        if self.chat is None and (self.pack or self.truncate or self.learn != "all"):
            raise ValueError("learn, pack and truncate are of chat")
        return self

    @property
    def stdlib_bytes(self) -> int:
        return byte_count(self.stdlib, "data.stdlib")


class Sample(_Section):
    """[train.sample]: a text that is continued with each checkpoint, to see what was learned."""

    prompt: str = Field(min_length=1)
    max_tokens: Positive = 48
    temperature: float = Field(default=0.8, ge=0, allow_inf_nan=False)


class TrainSection(_Section):
    """[train]: how long, how, and where to. `checkpoint_every` counts steps (0: only at the end); `folder` gets checkpoints, metrics, pictures and the
    model. `frozen` are patterns of weights that stay as they are: "model.embed*"."""

    steps: int = Field(ge=1, le=MOST_STEPS)
    folder: str
    precision: str = "auto"
    memory_limit: _Size | None = None
    mode: str = "auto"
    device: str = "auto"
    threads: int = Field(default=0, ge=0)
    policy: str = "balanced"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    frozen: list[str] = Field(default_factory=list)
    seed: int = 0
    on_nan: Literal["raise", "skip"] = "raise"
    checkpoint_every: int = Field(default=100, ge=0)
    keep: Positive = 3
    resume: bool = False
    export: Literal["no", "checkpoint", "f32", "bf16", "f16"] = "checkpoint"
    sample: Sample | None = None


class TrainConfig(_Section):
    """All of the file. `place` is the folder that its paths are relative to."""

    model: ModelSection
    data: DataSection
    optimizer: dict[str, Any] = Field(default_factory=dict)
    train: TrainSection
    place: str = "."

    def path(self, name: str) -> Path:
        """A path of the file. Raises `ConfigError` for one that no system has."""
        if "\0" in name:
            raise ConfigError(f"the path {name!r} has a zero byte", hint="name a file or folder")
        return Path(self.place) / name

    @property
    def folder(self) -> Path:
        """Where everything of the run goes."""
        return self.path(self.train.folder)

    @property
    def memory_limit(self) -> int | None:
        """Bytes of arena at most, None for as many as the plan takes."""
        limit = self.train.memory_limit
        return None if limit is None else byte_count(limit, "train.memory_limit")

    def made_optimizer(self) -> Optimizer:
        """The optimizer of [optimizer]; the steps of a schedule are those of the run unless it says otherwise. Raises `ConfigError`."""
        given = dict(self.optimizer)
        kind = given.pop("kind", "adamw")
        kinds: dict[str, type[AdamW] | type[SGD]] = {"adamw": AdamW, "sgd": SGD}
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(f"optimizer.kind is {kind!r}", hint=f"use one of {', '.join(kinds)}")
        known = list(kinds[kind].__dataclass_fields__)
        if unknown := [name for name in given if name not in known]:
            raise ConfigError(
                "; ".join(_unknown(f"optimizer.{name}", name, ["kind", *known]) for name in unknown),
                hint=f"keys: {', '.join(['kind', *known])}",
            )
        if given.get("schedule", "constant") != "constant":
            given.setdefault("total_steps", self.train.steps)
        try:
            return kinds[kind](**given)
        except ConfigError as error:
            raise ConfigError(f"optimizer: {error.message}", hint=error.hint) from None

    def compared(self) -> dict[str, Any]:
        """The settings that results depend on, beside model, data, optimizer and seed: those of a run that goes on must be the same."""
        return {
            "new": None if self.model.new is None else self.model.new.model_dump(),
            "micro_batches": self.data.micro_batches,
            "precision": self.train.precision,
            "dropout": self.train.dropout,
            "frozen": self.train.frozen,
            "on_nan": self.train.on_nan,
        }


def read_config(path: Path) -> TrainConfig:
    """The configuration in a file. Raises `ConfigError` that lists every problem: no TOML, keys that are unknown or missing, values of another type."""
    text = read_text(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="docs/train.md has an example") from None
    if "place" in raw:
        raise ConfigError(f"{path}: place: there is no such section", hint="leave it out")
    made = _validated(TrainConfig, {**raw, "place": str(path.parent)}, path)
    made.made_optimizer()
    if made.data.stdlib is not None:
        _ = made.data.stdlib_bytes
    _ = made.memory_limit
    return made


def _validated(kind: type[_M], raw: dict[str, Any], path: Path) -> _M:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = [_problem(kind, item["loc"], item["type"], item["msg"]) for item in error.errors()]
    shown = [
        *problems[:_MOST_PROBLEMS],
        *([f"and {len(problems) - _MOST_PROBLEMS} more"] * (len(problems) > _MOST_PROBLEMS)),
    ]
    raise ConfigError(f"{path} cannot be used:\n  " + "\n  ".join(shown), hint="docs/train.md lists the keys")


def _problem(root: type[BaseModel], place: tuple[int | str, ...], kind: str, message: str) -> str:
    name = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return _unknown(name, str(place[-1]), sorted(_keys(root, place[:-1]) - {"place"}))
    return f"{name}: {message.removeprefix('Value error, ')}" if name else message


def _keys(root: type[BaseModel], place: tuple[int | str, ...]) -> set[str]:
    """The keys of the section at `place`."""
    found: Any = root
    for part in place:
        annotation = found.model_fields[str(part)].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        found = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return set(found.model_fields)


def _unknown(name: str, key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"{name}: there is no such key" + (
        f", did you mean {close[0]}?" if close else f", there are {', '.join(known)}"
    )
