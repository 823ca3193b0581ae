"""How the files of a model family are spelled: the part of a family that checkpoints work with.

The table of families is handed in by whoever opens a checkpoint, so that this folder knows no family. What families have in common (the readers of a
decoder's configuration, the table of GGUF names) lies beside this file; a spelling says what is the family's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.reader import ConfigReader, MetadataReader
from ostinato.ir.errors import ConfigError

__all__ = [
    "FamilyFiles",
    "GgufSpelling",
    "HuggingFaceSpelling",
    "check_families",
    "own_config",
    "refuse_architecture",
    "stored_name",
]


def stored_name(name: str) -> str | None:
    """The name as it is, None for stored rotary frequencies: they follow from the configuration."""
    return None if name.endswith(".rotary_emb.inv_freq") else name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HuggingFaceSpelling:
    """One `model_type` of `config.json`; `classes` are the names in `architectures` that stand for it where model_type is absent.

    `config` reads the file. It raises `ConfigError` for what is wrong in it, and refuses every key that changes the mathematics and is not computed.
    `tensor_name` gives the name that the family's function asks for, from the one in the file; None says that the model computes without that tensor, which
    is then reported as ignored. `shifts` says what is added to the values of tensors whose names end so.
    """

    model_type: str
    classes: tuple[str, ...]
    config: Callable[[ConfigReader], ModelConfig]
    tensor_name: Callable[[str], str | None] = stored_name
    shifts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_tuple(f"classes of {self.model_type}", self.classes, str)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GgufSpelling:
    """One general.architecture of GGUF files, with the function that reads the metadata.

    `names` adds to the common table of names, or replaces in it: GGUF module -> Hugging Face module, `*` for the number of the block in both.
    `interleaved_rotary`: the rows of Q and K are stored with the two halves of each head's rotary pairs next to each other, and are put back while loading.
    """

    architecture: str
    config: Callable[[MetadataReader], ModelConfig]
    names: Mapping[str, str] = field(default_factory=dict)
    interleaved_rotary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyFiles:
    """What files of one family look like. `name` is the architecture of its `ModelConfig`; `also` names models that are of it without saying so."""

    name: str
    huggingface: tuple[HuggingFaceSpelling, ...]
    gguf: tuple[GgufSpelling, ...] = ()
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_tuple(f"huggingface of {self.name}", self.huggingface, HuggingFaceSpelling)
        _check_tuple(f"gguf of {self.name}", self.gguf, GgufSpelling)
        _check_tuple(f"also of {self.name}", self.also, str)


def check_families(families: Sequence[FamilyFiles]) -> None:
    """Raises `ConfigError` for anything but families, and for a name that two of them claim: which one reads a file must not depend on their order."""
    given: Any = families  # callers are not type-checked
    if not isinstance(given, Sequence) or not all(isinstance(family, FamilyFiles) for family in given):
        raise ConfigError(
            f"families are {given!r}, expected Family records", hint="give a tuple, such as (*FAMILIES, MINE)"
        )
    for what, names in (
        ("name", [family.name for family in families]),
        ("model_type", [spelling.model_type for family in families for spelling in family.huggingface]),
        (
            "class",
            [name for family in families for spelling in family.huggingface for name in spelling.classes],
        ),
        ("GGUF architecture", [spelling.architecture for family in families for spelling in family.gguf]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ConfigError(f"the {what} {twice[0]!r} is claimed twice", hint="give each family names of its own")


def own_config(family: FamilyFiles, config: ModelConfig) -> ModelConfig:
    """`config` as it is, if it names the family that read it. Raises `ConfigError` otherwise: another family's function would run."""
    if config.architecture != family.name:
        raise ConfigError(
            f"the family {family.name!r} read a configuration of architecture {config.architecture!r}",
            hint="a family's function takes the architecture from its reader",
        )
    return config


def refuse_architecture(found: str, families: Sequence[FamilyFiles], where: str = "") -> ConfigError:
    """The error for an architecture that no family claims."""
    also = "; ".join(f"as {family.name} also: {', '.join(family.also)}" for family in families if family.also)
    return ConfigError(
        f"{where}architecture {found!r} is not supported",
        hint=f"supported: {', '.join(family.name for family in families)}" + (f" ({also})" if also else ""),
    )


def _check_tuple(what: str, value: Any, kind: type) -> None:
    """A record in parentheses without a comma is no tuple, and a text in place of names would match by its parts."""
    if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
        raise ConfigError(
            f"{what} is {value!r}, expected a tuple of {kind.__name__}", hint="a tuple of one is written with a comma"
        )
