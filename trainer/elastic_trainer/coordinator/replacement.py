"""`replace` as dataclasses' own, for values of which one field or two change at each message."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace  # whose arguments mypy knows
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a dataclass with other values in some fields.

        It copies them at once, where dataclasses.replace has `__init__` set each: the
        coordinator's State has 45, which takes 20 times as long.

        Raises:
            TypeError: there is no such field.
        """
        kind = type(value)
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = _count(kind)
        if fields:
            made = object.__new__(kind)
            held = made.__dict__
            held.update(value.__dict__)
            held.update(changes)
            if len(held) == fields:
                return made
        # It checks its fields, or it has no such one, or has worked out more from those it has.
        return dataclasses.replace(value, **changes)


_FIELDS: dict[type, int] = {}
"""How many fields each kind of value has; 0: they are not to be copied at once."""


def _count(kind: Any) -> int:
    whole = hasattr(kind, "__post_init__") or "__slots__" in vars(kind)
    return 0 if whole else len(dataclasses.fields(kind))
