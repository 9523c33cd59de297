"""Access to the page: requests are refused before they are looked at, tokens end."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.queue_policy.world import NOW
from volcano_elastic.dashboard.access import Asked, hosts, refusal
from volcano_elastic.dashboard.token_list import BadTokens, TokenList, parse

HOSTS = hosts("127.0.0.1", 8321, ("gpus.example.com",))
GOOD = Asked(
    method="GET",
    path="/api/jobs",
    query="page=1",
    host="127.0.0.1:8321",
    origin=None,
    fetch_site=None,
    authorization="Bearer right",
    has_body=False,
)
FILE = replace(GOOD, path="/page/app.js", authorization=None)


def status(asked: Asked) -> int:
    found = refusal(asked, HOSTS, lambda token: token == "right")
    return 200 if found is None else found.status


@pytest.mark.parametrize(
    "asked",
    [
        GOOD,
        FILE,
        replace(GOOD, host="localhost:8321", origin="http://localhost:8321"),
        replace(GOOD, host="GPUS.example.com", fetch_site="same-origin"),
        replace(GOOD, host="[::1]:8321", method="HEAD"),
        replace(FILE, fetch_site="cross-site"),
        replace(FILE, path="/healthz", host="10.1.2.3:8321"),
    ],
    ids=repr,
)
def test_the_pages_own_requests_are_answered(asked: Asked) -> None:
    assert status(asked) == 200


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (replace(GOOD, method="POST"), 405),
        (replace(GOOD, method="OPTIONS", origin="https://evil.example"), 405),
        (replace(GOOD, host=None), 421),
        (replace(GOOD, host="evil.example:8321"), 421),
        (replace(FILE, host="127.0.0.1"), 421),
        (replace(GOOD, origin="https://evil.example"), 403),
        (replace(GOOD, origin="null"), 403),
        (replace(GOOD, origin="http://127.0.0.1:9999"), 403),
        (replace(GOOD, fetch_site="cross-site"), 403),
        (replace(GOOD, fetch_site="same-site"), 403),
        (replace(GOOD, has_body=True), 413),
        (replace(GOOD, query="text=" + "x" * 1024), 414),
        (replace(GOOD, authorization=None), 401),
        (replace(GOOD, authorization="right"), 401),
        (replace(GOOD, authorization="Basic right"), 401),
        (replace(GOOD, authorization="Bearer wrong"), 401),
        (replace(GOOD, authorization="Bearer "), 401),
        (replace(GOOD, path="/api/../page/app.js", authorization=None), 401),
        (replace(GOOD, path="/api", authorization=None), 401),
    ],
    ids=repr,
)
def test_other_requests_are_refused(asked: Asked, expected: int) -> None:
    assert status(asked) == expected


def test_a_token_that_is_made_ends_with_its_lifetime() -> None:
    now = NOW
    tokens = TokenList(lambda: now, lifetime=timedelta(hours=1))
    assert tokens.made is not None and len(tokens.made) >= 32
    assert tokens.accepts(tokens.made) and not tokens.accepts(tokens.made[:-1])
    assert not tokens.accepts("") and not tokens.accepts("nicht-ä")
    now += timedelta(hours=1)
    assert not tokens.accepts(tokens.made)


def test_a_file_of_tokens_is_followed_and_a_broken_one_lets_nobody_in(tmp_path: Path) -> None:
    file, first, second = tmp_path / "tokens", "first-" + "x" * 16, "second" + "x" * 16
    now = NOW

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        os.replace(new, file)

    write(f"{first} 2026-01-02T00:00:00Z  # ann's\n\n")
    tokens = TokenList(lambda: now, file)
    assert tokens.accepts(first) and not tokens.accepts(second)
    write(f"{first} 2026-01-02T00:00:00Z\n{second}\n")
    assert tokens.accepts(second)
    now += timedelta(days=1)
    assert not tokens.accepts(first) and tokens.accepts(second)
    write("short\n")
    assert not tokens.accepts(second)
    file.unlink()
    assert not tokens.accepts(second)
    write(f"{second}\n")
    assert tokens.accepts(second)


@pytest.mark.parametrize("line", ["short", "x" * 20 + " tomorrow", "x" * 20 + " 2026-01-01 more"])
def test_a_line_that_is_no_token_is_named(line: str) -> None:
    with pytest.raises(BadTokens, match="line 2: expected"):
        parse(f"# tokens\n{line}\n")
