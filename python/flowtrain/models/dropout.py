"""Dropout that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowtrain.config.checks import require


def dropout_rates(config: Any) -> dict[str, float]:
    """Rates of dropout above 0, by their dotted names in a Hugging Face configuration."""
    return dict(_rates(config.to_dict(), ""))


def check_image_dropout(config: Any, cache: Path) -> None:
    """Refuse to store features that are drawn anew each time.

    Args:
        config: A Hugging Face configuration.
        cache: Folder of the features.

    Raises:
        ConfigError: There is dropout outside of the language model.
    """
    rates = dropout_rates(config)
    shown = [f"{n}={rate:g}" for n, rate in rates.items() if not n.startswith("text_config.")]
    require(
        not shown,
        f"flow.cache.path={cache}: the model's tower has dropout ({', '.join(shown)}), so that "
        "features differ each time; set it to 0 in config.json, or leave flow.cache out",
    )


def _rates(tree: Mapping[Any, Any], above: str) -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _rates(value, f"{above}{name}.")
        elif "drop" in str(name) and isinstance(value, int | float) and value > 0:
            yield f"{above}{name}", float(value)
