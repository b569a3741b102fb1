"""A context of a cache: the payloads that were computed in one and the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

DESCRIPTION = "context.json"


@dataclass(frozen=True, slots=True)
class Context:
    """All that a payload depends on, except its key.

    Attributes:
        description: Values that JSON holds, such as digests of weights, dtypes and versions.
    """

    description: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The description as JSON, the same for equal ones."""
        return json.dumps(self.description, sort_keys=True, indent=1) + "\n"

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Names of the values that another description has not, or in another way."""
        own, others = dict(_flat(self.description)), dict(_flat(other))
        return sorted(n for n in own.keys() | others.keys() if own.get(n) != others.get(n))

    @property
    def name(self) -> str:
        """Name of its folder: another one for each other description."""
        return sha256(self.text.encode()).hexdigest()[:32]


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
