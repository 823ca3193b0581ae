"""Numbers of bytes as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.checks import byte_count, shown
from ostinato.ir.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0),
        (np.int64(7), 7),
        ("4096", 4096),
        ("10b", 10),
        ("1K", 1024),
        ("512M", 512 << 20),
        (" 1.5 GiB ", 3 << 29),
        ("2 GB", 2 * 10**9),
        ("100kb", 100_000),
        ("3t", 3 << 40),
        ("1.7", 1),
    ],
)
def test_sizes_are_read(given: object, expected: int) -> None:
    assert byte_count(given, "limit") == expected


@pytest.mark.parametrize("given", [-1, "-1", "", "M", "1e3", "5ib", "1,5G", "12 parsecs", 1.5, True, None, "9" * 30])
def test_what_is_no_size_is_refused_by_name(given: object) -> None:
    with pytest.raises(ConfigError, match="limit is"):
        byte_count(given, "limit")


def test_a_value_is_told_in_a_message_of_readable_length() -> None:
    assert shown([1, "a"]) == "[1, 'a']"
    assert len(shown(["long"] * 10_000)) < 2100
