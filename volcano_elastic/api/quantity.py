"""Kubernetes quantities as whole numbers: base units times 1000 (1 CPU = 1000, 1 byte = 1000)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SHAPE = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?"
)
# Far beyond what any cluster has; exponents of millions would keep us computing for hours.
_MOST_DIGITS = 30


class QuantityError(ValueError):
    """Text that is no Kubernetes quantity."""


def milli(quantity: str | int | float) -> int:
    """`quantity` in thousandths of its base unit, rounded up as Kubernetes rounds.

    Raises:
        QuantityError: not a quantity; says what one looks like.
    """
    if isinstance(quantity, bool):
        raise QuantityError(_complaint(quantity))
    if isinstance(quantity, int):
        return quantity * 1000
    match = _SHAPE.fullmatch(str(quantity).strip())
    if match is None:
        raise QuantityError(_complaint(quantity))
    number, exponent, suffix = match.groups()
    value = Decimal(number + (exponent or ""))
    if abs(value.adjusted()) > _MOST_DIGITS:
        raise QuantityError(_complaint(quantity))
    if suffix in _BINARY:
        value *= 1024 ** _BINARY[suffix]
    else:
        value = value.scaleb(_DECIMAL[suffix or ""])
    return int((value * 1000).to_integral_value(ROUND_CEILING))


def text(amount: int) -> str:
    """The shortest exact spelling of `amount` thousandths: `500m`, `2`, `8Gi`."""
    if amount % 1000:
        return f"{amount}m"
    units = amount // 1000
    if units:
        for suffix, power in reversed(_BINARY.items()):
            # Not Ki: 1024 GPUs should not read as 1Ki.
            if power > 1 and units % 1024**power == 0:
                return f"{units // 1024**power}{suffix}"
    return str(units)


def parse(resources: Mapping[str, str | int | float]) -> dict[str, int]:
    """A resource list, e.g. a container's requests, by `milli`.

    Raises:
        QuantityError: as `milli`.
    """
    return {name: milli(quantity) for name, quantity in resources.items()}


def total(lists: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum by resource name."""
    out: dict[str, int] = {}
    for resources in lists:
        for name, amount in resources.items():
            out[name] = out.get(name, 0) + amount
    return out


def _complaint(found: object) -> str:
    return f"expected a quantity such as 2, 500m, 1.5 or 8Gi, found {str(found)[:100]!r}"


@functools.lru_cache(maxsize=4096)
def canonical(quantity: str | int | float) -> str:
    """`quantity` as an API server answers it: `0.5` is `500m`, `1024Mi` is `1Gi`, `5000` is `5k`.

    Raises:
        QuantityError: not a quantity; says what one looks like.
    """
    match = _SHAPE.fullmatch(str(quantity).strip())
    if match is None or isinstance(quantity, bool):
        raise QuantityError(_complaint(quantity))
    number, exponent, suffix = match.groups()
    value = Decimal(number + (exponent or ""))
    if abs(value.adjusted()) > _MOST_DIGITS:
        raise QuantityError(_complaint(quantity))
    if suffix in _BINARY:
        value *= 1024 ** _BINARY[suffix]
        if abs(value) >= 1024 and value == value.to_integral_value():
            power, units = 0, int(value)
            while units % 1024 == 0 and power < len(_BINARY):
                power, units = power + 1, units // 1024
            return f"{units}{['', *_BINARY][power]}"
    else:
        value = value.scaleb(_DECIMAL[suffix or ""])
    nano = int((value * 10**9).to_integral_value(ROUND_CEILING))
    if nano == 0:
        return "0"
    power = -9
    while nano % 1000 == 0 and power < 18:
        nano, power = nano // 1000, power + 3
    if exponent:
        return f"{nano}e{power}" if power else str(nano)
    return f"{nano}{next(name for name, one in _DECIMAL.items() if one == power)}"
