"""What an artifact says of itself: its last member, `manifest.json`, and the names of the others.

The manifest is checked by the file's own checksum, every other member by the size and the xxh3_128 that the manifest states. Nothing is read that this
version does not know (`extra="forbid"`), and nothing in an artifact is ever evaluated: values are JSON, graphs are text, and code objects are bytes that nobody
looks at unless the caller trusts the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ostinato.backend_hip.evidence.records import Environment
from ostinato.ir.version import VERSION

__all__ = [
    "ARTIFACT_VERSION",
    "CODE",
    "DECISIONS",
    "MANIFEST",
    "PLAN",
    "RECORDS",
    "TOKENIZER",
    "WEIGHTS",
    "CodeObject",
    "EmbeddedModel",
    "EmbeddedTensor",
    "EntryFiles",
    "Extensions",
    "Head",
    "Kind",
    "Manifest",
    "Member",
    "ModelFile",
    "ModelIdentity",
    "Request",
    "TensorIdentity",
    "graph_member",
]

ARTIFACT_VERSION = 1
MANIFEST, PLAN, DECISIONS, RECORDS = "manifest.json", "plan.json", "decisions.json", "evidence.jsonl"
TOKENIZER, WEIGHTS, CODE = "tokenizer.json", "weights.safetensors", "code"
"""Names of members; `CODE` is the folder of the code objects."""

Extent = Annotated[int, Field(ge=0, le=2**48)]
Kind = Literal["text", "encoder", "llm", "embedder", "staged"]
"""What made the program: `ostinato.compile`, `compile_encoder`, `LLM`, `Embedder`, or the stages one by one."""


def graph_member(number: int) -> str:
    """The member with the lowered graph of an entry, by its place in the program."""
    return f"graphs/{number}.ir"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Member(_Model):
    """A member beside the manifest: bytes, and their xxh3_128 in hexadecimal."""

    size: int = Field(ge=0)
    digest: str = Field(pattern="^[0-9a-f]{32}$")


class EntryFiles(_Model):
    """An entry of the program, and the member with its lowered graph: that before recomputation, since the plan brings what recomputation made of it."""

    name: str
    graph: str


class Request(_Model):
    """What the program was asked for, so that it can be compiled again. Arguments that are None or empty have their defaults.

    `unsaid` are arguments that no file can hold: passes and policies of the user's own. A program that has some is loaded like any other, and not compiled
    again from here.
    """

    kind: Kind
    buckets: Mapping[str, tuple[int, ...]] | None = None
    logits: str = "last"
    context: int | None = None
    max_num_seqs: int | None = None
    max_seq_length: int | None = None
    precision: str = "auto"
    memory_limit: int | str | None = None
    reuse: bool = True
    mode: str = "auto"
    capture: tuple[str, ...] | None = None
    levels: Mapping[str, str] | None = None
    disable: tuple[str, ...] = ()
    policy: str = "balanced"
    unsaid: tuple[str, ...] = ()


class TensorIdentity(_Model):
    """A tensor of the checkpoint: `transform` is how loading it differs from copying its rows (`WeightPart.transform`)."""

    dtype: str
    shape: tuple[Extent, ...]
    transform: str = "none"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" + ("" if self.transform == "none" else f" ({self.transform})")


class ModelFile(_Model):
    """A file of the checkpoint that has tensors, by its name below the checkpoint."""

    name: str
    size: int = Field(ge=0)


class ModelIdentity(_Model):
    """Which checkpoint the program is of. `path` is where it was, as a hint; `package` the name of the installed model package, if it is one.

    `sampled` is the xxh3_128 over every tensor's name, dtype and shape and the first and last 4096 of its bytes, which tells models that were trained on from
    each other without reading them; `whole` is over all bytes, where that was asked for.
    """

    path: str
    package: str | None = None
    format: str
    architecture: str
    files: tuple[ModelFile, ...]
    tensors: Mapping[str, TensorIdentity]
    sampled: str
    whole: str | None = None


class EmbeddedTensor(_Model):
    """A tensor in `weights.safetensors`. Block dtypes are stored as bytes there, and say here what they are. `rows` names the tensor that has its row order,
    `shift` is added when it is loaded."""

    dtype: str
    shape: tuple[Extent, ...]
    rows: str | None = None
    shift: float = 0.0


class EmbeddedModel(_Model):
    """A checkpoint inside an artifact: all that its files said, but for the tokenizer's vocabulary and the weights, which are members.

    `config`, `generation` and `recipe` are the fields of `ModelConfig`, `GenerationDefaults` and (of encoders) `EmbeddingRecipe`.
    """

    config: JsonValue
    generation: JsonValue
    recipe: JsonValue = None
    special_tokens: Mapping[str, str] = {}
    chat_template: str | None = None
    end_token_ids: tuple[int, ...] = ()
    has_tokenizer: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tensors: Mapping[str, EmbeddedTensor]


class CodeObject(_Model):
    """A compiled module: the member with its bytes, the kernel file and the entry points that are in it. `key` is the hash of the source it was compiled from,
    with the compiler's options and the version of the library."""

    member: str
    key: str
    file: str
    kernels: tuple[str, ...]


class Extensions(_Model):
    """What `ostinato.extend` had added that the program uses: operators and rows by a hash of all they say and do, kernel files by that of their text."""

    operators: Mapping[str, str] = {}
    rows: Mapping[str, str] = {}
    kernels: Mapping[str, str] = {}

    @property
    def any(self) -> bool:
        return bool(self.operators or self.rows or self.kernels)


class Head(BaseModel):
    """What tells an artifact of another version from a damaged one."""

    format: str
    version: int
    package_version: str = "none stated"


class Manifest(_Model):
    """All that an artifact says beside plan, graphs and decisions.

    `target` and `device` are what its plan is for: "host" and "host:0", or the architecture of a GPU and the name of its memory. `rows` are the
    implementation rows of the program by a hash of what they declare, `kernels` the sources of its kernels by theirs. `environment` is what it was compiled on.
    `vendor` are the algorithms of the vendor's GEMM for its products, as `vendor_record.py` writes them.
    """

    format: Literal["ostinato-artifact"] = "ostinato-artifact"
    version: int = ARTIFACT_VERSION
    package_version: str = VERSION
    abi_version: int
    request: Request
    target: str
    device: str
    entries: tuple[EntryFiles, ...]
    environment: Environment
    rows: Mapping[str, str]
    kernels: Mapping[str, str]
    extensions: Extensions = Extensions()
    model: ModelIdentity
    embedded: EmbeddedModel | None = None
    vendor: tuple[Mapping[str, JsonValue], ...] = ()
    code: tuple[CodeObject, ...] = ()
    members: Mapping[str, Member]

    @property
    def standalone(self) -> bool:
        """Whether the weights are in it."""
        return self.embedded is not None
