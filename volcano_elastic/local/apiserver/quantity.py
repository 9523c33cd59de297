"""Resource quantities, as far as the API server has to compare them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$")
_SCALE = {
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("num", start=-3)},
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse(value: Any) -> Decimal | None:
    """The amount, or None for what is no quantity."""
    match = _FORM.match(str(value)) if not isinstance(value, bool) else None
    if not match:
        return None
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * _SCALE.get(suffix or "", Decimal(1))
