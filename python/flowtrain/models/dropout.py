"""Dropout that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dropout_rates(config: Any) -> dict[str, float]:
    """Rates of dropout above 0, by their dotted names in a Hugging Face configuration."""
    return dict(_rates(config.to_dict(), ""))


def _rates(tree: Mapping[Any, Any], above: str) -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _rates(value, f"{above}{name}.")
        elif "drop" in str(name) and isinstance(value, int | float) and value > 0:
            yield f"{above}{name}", float(value)
