"""The rule for the fields of a record: each is used, empty, ignored, or refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flowtrain.data.errors import DataError, cut, shortened

_NUMBERS = (bool, int, float)
_NO_VALUES: Mapping[str, Any] = {}


class UnreadFieldsError(DataError):
    """A record has fields that training does not use, and whose content would be lost.

    Attributes:
        names: Names of the fields, each once.
    """

    names: tuple[str, ...] = ()


class Fields:
    """Reads the objects of one record, and collects their fields that nothing uses.

    Args:
        where: Data set and line or row, for error messages.
        ignore: Names of fields that are read as if no object had them.
    """

    def __init__(self, where: str, ignore: Collection[str] = ()) -> None:
        self._where = where
        self._ignore = ignore
        self._unread: dict[str, str] = {}
        self._hints: dict[str, None] = {}

    def used(
        self,
        given: dict[str, Any],
        names: frozenset[str],
        of: str = "",
        *,
        fixed: Mapping[str, Any] = _NO_VALUES,
        hint: str = "",
    ) -> dict[str, Any]:
        """The used fields of an object. Every other one that has a value is noted for `check`.

        Args:
            given: The object.
            names: Names of the used fields.
            of: Name of the object in messages, such as "turn 2"; empty for the record itself.
            fixed: Values of further fields that say what is done anyway; any other value is noted.
            hint: What else to do about a noted field.
        """
        if given.keys() <= names and not self._ignore:  # As in most data sets.
            return given
        found = {}
        for name, value in given.items():
            if name in self._ignore:
                continue
            if name in names:
                found[name] = value
            elif not (is_empty(value) or (name in fixed and value == fixed[name])):
                shown = f"{name}={value!r}" if isinstance(value, _NUMBERS) else shortened(name)
                place = f"{shown} of {of}" if of else shown
                self._unread.setdefault(cut(str(name)), place)
                self._hints |= {hint: None} if hint else {}
        return found

    def check(self) -> None:
        """Refuse the record if a field was noted.

        Raises:
            UnreadFieldsError: One was.
        """
        if not self._unread:
            return
        names = tuple(self._unread)
        ways = [*self._hints] or ["write it into the text of a turn"]
        error = UnreadFieldsError(
            f"{self._where}: {', '.join(self._unread.values())}: not read, so that its content "
            f"would be lost; {', '.join(ways)}, or leave it out by {ignoring(names)}"
        )
        error.names = names
        raise error


def ignoring(names: Collection[str]) -> str:
    """The option that ignores fields."""
    return f"data.ignore=[{','.join(names)}]"


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: None, an empty text, or a list or object of such values.

    Tables have every field in every row, and in every object of a column.
    """
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None or (isinstance(value, str | bytes) and not value)


def either(given: Mapping[str, Any], one: str, other: str, where: str) -> Any:
    """Value of the field that is given under one of two names; empty values do not count.

    Raises:
        DataError: Both fields have a value.
    """
    first, second = given.get(one), given.get(other)
    if first and second:
        raise DataError(
            f"{where}: both {one!r} and {other!r} are given, and one of them would be lost; "
            "remove one"
        )
    return second if second or first is None else first
