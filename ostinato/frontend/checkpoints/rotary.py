"""Rotary position embedding as a configuration states it: one frozen record for every kind, and the frequencies of the kinds that need no length.

The angle of pair i at position p is p times frequency i, and the cosine and sine are multiplied by `attention_factor`. Kinds differ in the frequencies:

    default    theta ** (-2i / width)                                                     Su et al. 2021, arXiv:2104.09864
    linear     default / factor: positions are interpolated                               Chen et al. 2023, arXiv:2306.15595
    dynamic    theta grows with the length of the sequence past the trained one           "NTK-aware" scaling, section 3.1 of arXiv:2309.00071
    yarn       default for fast pairs, linear for slow ones, a ramp between               Peng et al. 2023, arXiv:2309.00071
    llama3     the same idea with bounds on the wavelength                                Llama 3.1, Grattafiori et al. 2024, arXiv:2407.21783
    longrope   default / short_factor or, past the trained length, / long_factor          Ding et al. 2024, arXiv:2402.13753

A partial rotary embedding is any of them with a `width` below the head's: the elements from `width` on pass unchanged. Frequencies are computed in float32
in the order of the common implementation, whose bits matter at large positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ostinato.ir.errors import LifecycleError
from ostinato.ir.types import Array

__all__ = ["ROTARY_KINDS", "Rotary", "is_positive", "yarn_growth"]

ROTARY_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


_FLOAT32 = np.finfo(np.float32)


def is_positive(value: float) -> bool:
    """True for a number above 0 that float32 holds with all its digits."""
    return float(_FLOAT32.tiny) <= value <= float(_FLOAT32.max)


def yarn_growth(factor: float, weight: float = 1.0) -> float:
    """0.1 weight ln(factor) + 1: what yarn multiplies cosine and sine by (section 3.4 of the paper); 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Kind and numbers of a rotary embedding; fields that its kind does not use keep their defaults.

    `width` is in elements (two a pair). `original_positions` is the trained length that dynamic, yarn, llama3 and longrope scale from. `beta_fast` and
    `beta_slow` are rotations over that length, between which yarn ramps; `truncate` rounds the ramp's ends to whole pairs. `short_factor` and `long_factor`
    have one divisor a pair. `divisors` divide the frequencies of a static kind once more (one a pair, or none): GGUF files store llama3's scaling so.
    Holds what it is given: `problems` lists what is unusable, and a `ModelConfig` refuses it.
    """

    kind: str = "default"
    theta: float = 10000.0
    width: int
    factor: float = 1.0
    original_positions: int = 0
    attention_factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()

    @property
    def depends_on_length(self) -> bool:
        """True where the frequencies follow the length of the token's sequence, so that a cached key stands for the length it was made at."""
        return self.kind in ("dynamic", "longrope")

    def reach(self, positions: int) -> int:
        """How many positions a model serves whose configuration states so many: more where the kind stretches them and they are stated unstretched."""
        if self.kind == "dynamic":
            return int(positions * self.factor)
        return max(positions, int(self.original_positions * self.factor)) if self.kind == "yarn" else positions

    def frequencies(self) -> Array:
        """float32 [width / 2] of a static kind. Raises `LifecycleError` for the kinds that depend on a length."""
        if self.depends_on_length:
            raise LifecycleError(
                f"the frequencies of rotary kind {self.kind!r} depend on the length of the sequence",
                hint="build its tables with the operator of that kind",
            )
        plain = np.float32(1.0) / self._powers()
        if self.kind == "linear":
            plain = plain / np.float32(self.factor)
        elif self.kind == "yarn":
            plain = self._yarn(plain)
        elif self.kind == "llama3":
            plain = self._llama3(plain)
        if self.divisors:
            plain = plain / np.array(self.divisors, np.float32)
        return plain.astype(np.float32)

    def scaled_frequencies(self, divisors: tuple[float, ...]) -> Array:
        """float32 [width / 2]: the plain frequencies divided by one number a pair, as longrope does with each of its two lists."""
        return (np.float32(1.0) / (np.array(divisors, np.float32) * self._powers())).astype(np.float32)

    def problems(self) -> list[str]:
        """What makes the record unusable, in words; empty when nothing does."""
        if self.kind not in ROTARY_KINDS:
            return [f"rotary kind {self.kind!r} is unknown"]
        found = []
        if self.width <= 0 or self.width % 2:
            found.append(f"the rotary width is {self.width}, rotary embeddings need an even width")
        if self.kind == "dynamic" and self.width == 2:
            found.append("the rotary width is 2, dynamic scaling needs at least 4")
        for name in ("theta", "factor", "attention_factor"):
            value = getattr(self, name)
            if not is_positive(value):
                found.append(
                    f"{'rope_theta' if name == 'theta' else name} is {value}, expected a finite positive number"
                )
        if self.kind in ("dynamic", "yarn", "llama3", "longrope") and not 0 < self.original_positions < 2**31:
            found.append(
                f"{self.kind} rotary scaling starts from {self.original_positions} positions, expected a positive number"
            )
        if self.kind == "llama3" and not 0 < self.low_frequency_factor < self.high_frequency_factor:
            found.append(
                f"low_freq_factor {self.low_frequency_factor} is not between 0 and high_freq_factor {self.high_frequency_factor}"
            )
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast:
            found.append(f"beta_slow {self.beta_slow} is not between 0 and beta_fast {self.beta_fast}")
        if self.kind == "yarn" and self.theta == 1.0:
            found.append("rope_theta is 1, yarn needs pairs of different frequencies")
        for name in ("short_factor", "long_factor", "divisors"):
            values: tuple[float, ...] = getattr(self, name)
            needed = self.kind == "longrope" and name != "divisors"
            if (needed or values) and len(values) != self.width // 2:
                found.append(f"{name} has {len(values)} numbers, {self.width // 2} pairs need one each")
            if not all(map(is_positive, values)):
                found.append(f"{name} has numbers that are not finite and positive")
        return found

    def has_finite_frequencies(self) -> bool:
        """Whether float32 holds them, of a record without `problems`: each number may be fine and their product not."""
        with np.errstate(all="ignore"):
            if self.kind == "longrope":
                lists = [self.scaled_frequencies(divisors) for divisors in (self.short_factor, self.long_factor)]
            else:
                lists = [] if self.kind == "dynamic" else [self.frequencies()]
        return all(np.isfinite(frequencies).all() for frequencies in lists)

    def _powers(self) -> Array:
        """theta ** (2i / width), float32."""
        exponent = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        powers: Array = np.power(np.float32(self.theta), exponent, dtype=np.float32)
        return powers

    def _yarn(self, plain: Array) -> Array:
        """Pairs that turn more than `beta_fast` times over the trained length keep their frequency, those below `beta_slow` times are interpolated."""

        def pair_of(rotations: float) -> float:
            turns = self.original_positions / (rotations * 2 * math.pi)
            return self.width * math.log(turns) / (2 * math.log(self.theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.width - 1)
        span = high - low if high != low else 0.001
        ramp = np.clip((np.arange(self.width // 2, dtype=np.float32) - np.float32(low)) / np.float32(span), 0, 1)
        kept = np.float32(1.0) - ramp.astype(np.float32)
        interpolated = np.float32(1.0) / (np.float32(self.factor) * self._powers())
        blended: Array = interpolated * (np.float32(1.0) - kept) + plain * kept
        return blended

    def _llama3(self, plain: Array) -> Array:
        """Short wavelengths are kept, long ones divided by `factor`, those between blended."""
        trained = np.float32(self.original_positions)
        low, high = np.float32(self.low_frequency_factor), np.float32(self.high_frequency_factor)
        wavelength = np.float32(2 * math.pi) / plain
        blend = (trained / wavelength - low) / (high - low)
        factor = np.float32(self.factor)
        blended = (np.float32(1.0) - blend) * plain / factor + blend * plain
        scaled = np.where(wavelength > trained / low, plain / factor, plain)
        between = (wavelength >= trained / high) & (wavelength <= trained / low)
        return np.where(between, blended, scaled)
