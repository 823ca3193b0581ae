"""Types of the native solver; native/binding.cpp says what it does."""

from array import array
from collections.abc import Callable

def solve(
    lower: array[int],
    upper: array[int],
    size: array[int],
    alignment: array[int],
    fixed: array[int],
    capacity: int,
    nodes: int,
    seconds: float,
    threads: int,
    seed: int,
    stop: Callable[[], bool] | None,
) -> tuple[list[int], int, int, int, int, bool, str]: ...
