"""The page's colours, as they are seen by those who lack one kind of cones.

Simulated by the matrices of Machado, Oliveira and Fernandes, "A physiologically-based model for
simulation of color vision deficiency" (IEEE TVCG 15(6), 2009), at full severity, on linear RGB;
distances are CIE 1976 differences in CIELAB under D65.
"""

from __future__ import annotations

import math
import re
from itertools import combinations
from operator import mul

import pytest

from volcano_elastic.dashboard.report_page import COLOURS, OTHERS
from volcano_elastic.dashboard.server import FILES

_SEES = {
    "all three": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)
APART = 19.5
"""A difference of 2.3 is just seen side by side."""
READABLE = 4.5
"""Contrast of text (WCAG 2.2, 1.4.3, level AA)."""
_QUEUES = [*(f"q{i}" for i in range(7)), "others"]

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]


def schemes() -> dict[str, dict[str, str]]:
    """Return the colours that the page's style names, for light and for dark screens."""
    blocks = re.findall(r":root \{(.*?)\}", (FILES / "style.css").read_text(), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    return {"light": light, "dark": light | dark}


SCHEMES = schemes()


def times(matrix: Matrix, vector: Vector) -> Vector:
    return tuple(sum(map(mul, row, vector)) for row in matrix)


def linear(colour: str) -> Vector:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def lab(rgb: Vector) -> Vector:
    xyz = [a / b for a, b in zip(times(_XYZ, rgb), _WHITE, strict=True)]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, sees: str) -> Vector:
    return lab(tuple(min(1.0, max(0.0, c)) for c in times(_SEES[sees], linear(colour))))


def contrast(one: str, other: str) -> float:
    low, high = sorted(times(_XYZ, linear(colour))[1] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sees", _SEES)
def test_colours_that_mean_different_things_are_told_apart(scheme: str, sees: str) -> None:
    colours = SCHEMES[scheme]
    pairs = [
        *combinations([*_QUEUES, "bad"], 2),
        *(("back", name) for name in [*_QUEUES, "bad", "out"]),
        # Changes: grown, shrunk, other.
        *combinations(["q0", "q1", "soft"], 2),
    ]
    near = {
        pair: round(found, 1)
        for pair in pairs
        if (found := math.dist(*(seen(colours[name], sees) for name in pair))) < APART
    }
    assert not near


def test_the_weekly_report_has_the_same_colours() -> None:
    assert [*COLOURS, OTHERS] == [SCHEMES["light"][name] for name in _QUEUES]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read_on_either_ground(scheme: str) -> None:
    colours = SCHEMES[scheme]
    poor = {
        (text, ground): round(found, 2)
        for text in ("text", "soft", "link", "bad-text")
        for ground in ("back", "panel")
        if (found := contrast(colours[text], colours[ground])) < READABLE
    }
    assert not poor
    assert contrast(colours["focus"], colours["back"]) >= 3, "where the keyboard is"


def test_the_simulation_finds_what_is_known_to_be_alike() -> None:
    """Okabe and Ito's orange and an olive, which were both in use here once."""
    assert math.dist(seen("#e69f00", "no red"), seen("#b8a800", "no red")) < 1
    assert math.dist(seen("#e69f00", "all three"), seen("#b8a800", "all three")) > APART
    assert lab((1, 1, 1)) == pytest.approx((100, 0, 0), abs=0.01)
