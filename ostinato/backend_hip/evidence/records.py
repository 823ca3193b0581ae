"""What a ledger holds: one JSON object a line, a `ValidationRecord` or a `TimingRecord`.

A record says everything that its use depends on, so that a line can be sent, read and refused by itself. Its `id` is a hash of all the rest: a line that was
changed after it was written does not check. Error figures that are not finite are null. Nothing is read that this version does not know (`extra="forbid"`).
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, model_validator

__all__ = [
    "Environment",
    "LevelName",
    "Record",
    "RunFigures",
    "TimingRecord",
    "ValidationRecord",
    "read_record",
    "write_record",
]

LevelName = Literal["reference", "readable", "tuned", "vendor"]
_ID_LETTERS = 16
_DRAFT = "draft"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Environment(_Model):
    """What a record was made on. Which of these make a record stale is for `known.py` to say."""

    device: str
    """The card or the CPU, as its driver or system names it."""
    architecture: str
    """"sm_90", "gfx942", or the host's with its kernel unit: "x86_64/avx512_bf16"."""
    wave: int = 0
    """Lanes of a wave; 0 on the host."""
    driver: str = ""
    runtime: str = ""
    vendor_library: str = ""
    """Name and version of the library that multiplies matrices, empty where there is none."""
    compiler: str = ""
    """Name and version of what compiled the kernels."""
    kernel_hash: str
    """Over the sources of all kernels of the device's kind."""
    version: str
    """Of ostinato."""


class _Record(_Model):
    id: str
    time: str
    """When it was made, UTC, ISO 8601 in seconds."""
    environment: Environment

    @classmethod
    def made(cls, **fields: Any) -> Self:
        """A record with its id, and the present time unless it is given."""
        fields.setdefault("time", datetime.now(UTC).isoformat(timespec="seconds"))
        draft = cls.model_validate({**fields, "id": ""}, context=_DRAFT)
        return draft.model_copy(update={"id": draft.digest()})

    def digest(self) -> str:
        """The id that the other fields make, those that have their default value apart: a version that knows more fields reads the records of this one."""
        fields = self.model_dump(mode="json", exclude={"id"}, exclude_defaults=True)
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_LETTERS]

    @model_validator(mode="after")
    def _is_whole(self, info: ValidationInfo) -> Self:
        if info.context != _DRAFT and self.id != self.digest():
            raise ValueError(f"the id is {self.id!r}, what it stands for makes {self.digest()!r}")
        return self


class ValidationRecord(_Record):
    """A row on one class of types: what was run and how far it was from the oracle. `passed` is what counts.

    Errors are absolute, of the call that came nearest to its bound: `maximum_error` and `rms_error` of the row, `plain_error` and `plain_rms` the same of the
    operator composed plainly in the precision that the row computes in, `bound` what the maximum had to keep to. All are 0 where results are equal bit for bit.
    """

    kind: Literal["validation"] = "validation"
    operator: str
    row: str
    level: LevelName
    signature: str
    """The class of types (`ir.signature.signature_class`)."""
    sources: dict[str, str]
    """Hashes of what was run by name (`sources.py`): each kernel's source with what it includes, and what the row declares."""
    calls: int = Field(ge=0)
    """How many calls were run."""
    seed: int
    maximum_error: float | None = Field(default=None, ge=0)
    rms_error: float | None = Field(default=None, ge=0)
    plain_error: float | None = Field(default=None, ge=0)
    plain_rms: float | None = Field(default=None, ge=0)
    bound: float | None = Field(default=None, ge=0)
    passed: bool
    reason: str = ""
    """Why it did not pass."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        """A row that passed was run, was finite, and kept to its bound."""
        if not self.passed:
            return self
        if self.reason or not self.calls or self.maximum_error is None:
            raise ValueError("it says passed, and that it ran no call, had no finite error, or why it did not pass")
        if self.bound is not None and self.maximum_error > self.bound:
            raise ValueError(f"it says passed, with an error of {self.maximum_error} above its bound of {self.bound}")
        return self

    @property
    def key(self) -> tuple[str, ...]:
        """What a later record replaces this one by."""
        names = ",".join(sorted(self.sources))
        return self.kind, self.operator, self.row, self.signature, self.environment.architecture, names


class RunFigures(_Model):
    """One side of a comparison: seconds of each fresh process in the order they ran, and memory in bytes. Without times where nothing was timed."""

    name: str
    """The candidate's or the baseline's: a policy, a row, a set of options."""
    seconds: tuple[float, ...] = ()
    peak_bytes: int = Field(default=0, ge=0)
    """The most that a process had, the device's memory included; the median over the processes."""
    arena_bytes: int = Field(default=0, ge=0)
    """Of the plan."""


class TimingRecord(_Record):
    """A candidate against its baseline, both run in alternating fresh processes. Only one of scope "model" can make a policy default; the others inform.

    `ratio` is the median over the pairs of baseline seconds / candidate seconds, above 1 where the candidate is faster; None for a candidate that was refused
    before it was timed. `outputs` says how its outputs relate to the baseline's.
    """

    kind: Literal["timing"] = "timing"
    scope: Literal["operator", "region", "model"]
    subject: str
    """The operator and row with its shape, the region, or the model's fingerprint."""
    label: str = ""
    """The subject for people: the model's name."""
    workload: str
    """What was run, and how: "p512 bf16", "d1 f32, 2 threads"."""
    candidate: RunFigures
    baseline: RunFigures
    ratio: float | None = Field(default=None, gt=0)
    outputs: Literal["equal", "within tolerance", "outside tolerance", "not run"]
    passed: bool
    reason: str = ""
    """Which gate it did not pass."""

    @property
    def key(self) -> tuple[str, ...]:
        """What a later record replaces this one by."""
        names = self.candidate.name, self.baseline.name
        return self.kind, self.scope, self.subject, self.workload, *names, self.environment.architecture


Record = ValidationRecord | TimingRecord
_ANY: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def read_record(line: str | bytes) -> Record:
    """The record of a line. Raises pydantic's `ValidationError` (a `ValueError`) for anything else."""
    return _ANY.validate_json(line)


def write_record(record: Record) -> str:
    """Its line, with the newline: what has its default value is left out."""
    fields = record.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    return json.dumps({"kind": record.kind, **fields}, separators=(",", ":")) + "\n"
