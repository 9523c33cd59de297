"""Writes a report of the past as one HTML file that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from volcano_elastic.dashboard.model.week import QueueWeek, Week
from volcano_elastic.simulator.figures import Figures

# As on the page: vermilion means "idle though wanted" and nothing else.
COLOURS = ("#016eae", "#eba305", "#1ca477", "#c87cad", "#63c6fe", "#e0cc67", "#795b3d")
OTHERS, _BAD, _LINE = "#636a6f", "#d55e00", "#59636e"
_WIDTH, _HEIGHT, _LEFT, _BELOW = 960, 240, 44, 22
_COLUMNS = 240
"""Columns of the picture; buckets are averaged into them."""
_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: #1c2128; background: #fff;
  font: 15px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
p { margin: .3rem 0; } .soft { color: #59636e; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .5rem;
  margin: .8rem 0; }
.tile { background: #f5f6f8; border-radius: 6px; padding: .5rem .7rem; }
.tile b { display: block; font-size: 1.35rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #d6d9df;
  vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; overflow-wrap: break-word; }
svg { display: block; width: 100%; height: auto; } svg text { font-size: 12px; fill: #59636e; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0;
  margin: .3rem 0; }
.legend i { display: inline-block; width: .9rem; height: .9rem; vertical-align: -2px;
  margin-right: .3rem; }
@media print { body { max-width: none; } }
"""


def report_page(week: Week, made: datetime) -> str:
    """Return the report as a document."""
    title = f"GPUs from {week.begin:%d %b %H:%M} to {week.end:%d %b %Y %H:%M} UTC"
    names = [queue.name for queue in week.queues if queue.held][: len(COLOURS)]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{_seen(week)} Written {made:%d %b %Y %H:%M} UTC.</p>',
        _tiles(week),
        "<h2>Held by queue</h2>",
        _picture(week, names),
        _legend(names, len(week.queues) > len(names)),
        "<h2>Queues</h2>",
        _queues(week),
        "<h2>Beside rigid scheduling</h2>",
        _replay(week),
        "<h2>Jobs that lost most</h2>",
        _worst(week),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _seen(week: Week) -> str:
    if week.observed > 0.99:
        return "A dashboard looked all the time."
    return (
        f"A dashboard looked {percent(week.observed)} of the time; of the rest nothing is known, "
        "and hours count that part only."
    )


def _tiles(week: Week) -> str:
    saved = "–" if week.saved is None else f"{hours(week.saved)} h"
    tiles = (
        (percent(_part(week.held, week.capacity)), "of all GPUs held"),
        (percent(_part(week.running, week.capacity)), "used by running pods"),
        (f"{hours(week.idle_wanted)} h", "GPU-hours idle though wanted"),
        (saved, "GPU-hours saved beside rigid gangs"),
        (span(week.all.wait), "median wait"),
        (percent(week.all.goodput), "goodput"),
    )
    cells = (f'<div class="tile"><b>{escape(b)}</b>{escape(words)}</div>' for b, words in tiles)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _picture(week: Week, names: Sequence[str]) -> str:
    """Stacked areas of what queues hold; a gap where nobody looked."""
    begin = week.begin.timestamp() * 1000
    whole = max(1.0, (week.end.timestamp() * 1000 - begin))
    most = max([1.0, *(bucket["capacity"] for bucket in week.buckets)])
    columns: list[list[float] | None] = [None] * _COLUMNS
    weights = [0.0] * _COLUMNS
    series = len(names) + 2
    for bucket in week.buckets:
        at = int((bucket["t"] - begin) / whole * _COLUMNS)
        if not 0 <= at < _COLUMNS:
            continue
        held = {name: values[0] for name, values in bucket["queues"].items()}
        amounts = [held.get(name, 0.0) for name in names]
        amounts += [sum(held.values()) - sum(amounts), bucket["idleWanted"]]
        found = columns[at] or [0.0] * series
        columns[at] = [a + b * bucket["ms"] for a, b in zip(found, amounts, strict=True)]
        weights[at] += bucket["ms"]
    colours = [*COLOURS[: len(names)], OTHERS, _BAD]
    wide, high = (_WIDTH - _LEFT) / _COLUMNS, _HEIGHT - _BELOW - 8
    bars = []
    for i, column in enumerate(columns):
        if column is None or not weights[i]:
            continue
        below = 0.0
        for amount, colour in zip(column, colours, strict=True):
            height = amount / weights[i] / most * high
            if height > 0.05:
                y = _HEIGHT - _BELOW - below - height
                bars.append(
                    f'<rect x="{_LEFT + i * wide:.1f}" y="{y:.1f}" width="{wide + 0.2:.1f}" '
                    f'height="{height:.1f}" fill="{colour}"/>'
                )
                below += height
    axis = []
    for part in (0.0, 0.5, 1.0):
        y = _HEIGHT - _BELOW - part * high
        axis.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_LINE}" '
            f'stroke-width=".5"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{most * part:g}</text>"
        )
    for i in range(8):
        time = datetime.fromtimestamp((begin + whole * i / 8) / 1000, UTC)
        x = _LEFT + (_WIDTH - _LEFT) * i / 8
        axis.append(f'<text x="{x:.0f}" y="{_HEIGHT - 5}">{time:%a %d %H:%M}</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="GPUs held by queue over '
        f'time, of {most:g}">{"".join(bars)}{"".join(axis)}</svg>'
    )


def _legend(names: Sequence[str], others: bool) -> str:
    shown = [*zip(COLOURS, names, strict=False)]
    shown += [(OTHERS, "others")] if others else []
    shown.append((_BAD, "idle though wanted"))
    items = (f'<li><i style="background:{c}"></i>{escape(name)}</li>' for c, name in shown)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _queues(week: Week) -> str:
    head = (
        *("queue", "held, h", "share", "used, h", "of held", "idle though wanted, h"),
        *("jobs came", "median wait", "p90", "goodput"),
    )

    def row(queue: QueueWeek) -> list[str]:
        return [
            queue.name,
            hours(queue.held),
            percent(_part(queue.held, week.capacity)),
            hours(queue.running),
            percent(_part(queue.running, queue.held)),
            hours(queue.idle_wanted),
            str(queue.jobs),
            span(queue.wait),
            span(queue.wait_p90),
            percent(queue.goodput),
        ]

    return (
        _table(head, [row(queue) for queue in (*week.queues, week.all)])
        + '<p class="soft">Held: bound to nodes. Used: of that, by running pods. Waits are '
        "those of jobs that came in this time, from creation until the minimum ran, or until now. "
        "Goodput: the part of processes' time that was training that counts.</p>"
    )


def _replay(week: Week) -> str:
    made = week.replay
    if made is None or made.elastic is None:
        return f"<p>The time is not replayed: {escape(week.no_replay)}.</p>"
    rows: tuple[tuple[str, Callable[[Figures], str]], ...] = (
        ("idle while wanted, GPU-hours", lambda f: hours(f.idle_while_wanted_hours)),
        ("mean completion", lambda f: span(f.mean_completion)),
        ("median wait", lambda f: span(f.median_wait)),
        ("mean wait", lambda f: span(f.mean_wait)),
        ("standstill at resizes, GPU-hours", lambda f: hours(f.standstill_hours)),
    )
    both: tuple[Figures, Figures] = (made.elastic, made.rigid)
    return (
        _table(
            ("simulated", "elastic", "rigid gangs"),
            [[words, *(shown(one) for one in both)] for words, shown in rows],
        )
        + f'<p class="soft">The {len(made.rigid_outcome.runs)} jobs that ran, with the work that '
        "they did, simulated twice: by the planner within their ranges, and as gangs of the size "
        "that they asked for, with backfill. One pool, speeds by Amdahl's law; what happened to "
        "nodes is not in it. Saved are the GPU-hours that rigid gangs leave idle while jobs wait "
        "for them, less those that the planner leaves.</p>"
    )


def _worst(week: Week) -> str:
    if not week.worst:
        return "<p>No job lost anything that is known.</p>"
    rows = [[w.job, w.queue, hours(w.lost), "; ".join(w.why)] for w in week.worst]
    return _table(("job", "queue", "lost, GPU-hours", "why"), rows, text=(1, 3))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = ()) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if i in text else ''}>{escape(value)}</{tag}>"
            for i, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _part(some: float, whole: float) -> float | None:
    return some / whole if whole else None


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def hours(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def span(seconds: float | None) -> str:
    """Return a time as a report says it."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
