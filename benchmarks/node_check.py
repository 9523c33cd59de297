"""Simulates how exact a node check is: `python -m benchmarks.node_check [--json]`.

Broken nodes are drawn at random. A group fails if one of its members is broken; an intermittent
fault shows in each trial with --shows' probability only. Beside it the two rounds of DLRover's
article: neighbours, then members of groups that failed with members of groups that passed; what
failed twice is broken.

With --slow, so many percent of the nodes are slow, some of them broken by chance. A slow node takes
3 times as long, a trial as long as its slowest member, and each measured time is up to --noise off.
Shown are nodes that are called slow and aren't, and slow ones, not broken, that aren't called so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_trainer.node_check.pairing import Group, next_groups
from elastic_trainer.node_check.verdict import Trial, Verdict, stragglers, verdicts

SLOW_TIMES = 3.0
"""So many times what the others take, a slow node takes."""

Shows = Callable[[Group], bool]
"""Returns whether a group passes."""


@dataclass(frozen=True)
class Outcome:
    faulty: frozenset[str]
    unknown: int
    rounds: int


def ours(nodes: Sequence[str], passes: Shows) -> Outcome:
    trials: list[Trial] = []
    number = 0
    while groups := next_groups(nodes, trials):
        number += 1
        trials += [Trial(number, group, passes(group)) for group in groups]
    found = verdicts(nodes, trials)
    return Outcome(
        frozenset(node for node in nodes if found[node] is Verdict.FAULTY),
        sum(verdict is Verdict.UNKNOWN for verdict in found.values()),
        number,
    )


def measure_slow(
    count: int, broken_share: float, slow_share: float, noise: float, trials: int, seed: int
) -> dict[str, float]:
    """Return means by check: nodes that are slow and not broken, quick ones that were called slow,
    slow ones that were not, sound nodes called faulty, broken ones not, rounds."""
    draw = random.Random(seed)
    nodes = [f"node-{i}" for i in range(count)]
    total = dict.fromkeys(("slow", "false", "missed", "faulty", "overlooked", "rounds"), 0)
    for _ in range(trials):
        broken = frozenset(draw.sample(nodes, int(broken_share * count)))
        slow = frozenset(draw.sample(nodes, int(slow_share * count)))
        held: list[Trial] = []
        number = 0
        while groups := next_groups(nodes, held):
            number += 1
            for group in groups:
                taken = SLOW_TIMES if slow.intersection(group) else 1.0
                seconds = {node: taken * draw.uniform(1 - noise, 1 + noise) for node in group}
                passes = broken.isdisjoint(group)
                held.append(Trial(number, group, passes, seconds if passes else {}))
        named, found = set(stragglers(held)), verdicts(nodes, held)
        faulty = {node for node in nodes if found[node] is Verdict.FAULTY}
        total["slow"] += len(slow - broken)
        total["false"] += len(named - slow)
        total["missed"] += len(slow - broken - named)
        total["faulty"] += len(faulty - broken)
        total["overlooked"] += len(broken - faulty)
        total["rounds"] += number
    return {name: summed / trials for name, summed in total.items()}


def the_articles(nodes: Sequence[str], passes: Shows) -> Outcome:
    first = next_groups(nodes, ())
    failed = [node for group in first if not passes(group) for node in group]
    if not failed:
        return Outcome(frozenset(), 0, 1)
    good = [node for node in nodes if node not in set(failed)]
    pairs = zip(failed, good, strict=False)
    rest = failed[len(good) :]
    # Without a good one left, suspects meet one another: not their partners of the first round.
    half = len(rest) // 2
    groups: list[Group] = [*pairs, *zip(rest[:half], rest[half : 2 * half], strict=True)]
    if len(rest) % 2:
        last = groups.pop() if groups else ()
        groups.append((*last, rest[-1]))
    again = {node for group in groups if not passes(group) for node in group}
    return Outcome(frozenset(failed) & again, 0, 2)


def measure(
    rule: Callable[[Sequence[str], Shows], Outcome],
    count: int,
    share: float,
    shows: float,
    trials: int,
    seed: int,
) -> dict[str, float]:
    """Return means by trial: sound nodes called faulty, broken nodes that were not, rounds."""
    draw = random.Random(seed)
    nodes = [f"node-{i}" for i in range(count)]
    false = missed = unknown = rounds = exact = 0
    for _ in range(trials):
        broken = frozenset(draw.sample(nodes, int(share * count)))

        def passes(group: Group, broken: frozenset[str] = broken) -> bool:
            return not any(node in broken and draw.random() < shows for node in group)

        outcome = rule(nodes, passes)
        false += len(outcome.faulty - broken)
        missed += len(broken - outcome.faulty)
        unknown += outcome.unknown
        rounds += outcome.rounds
        exact += outcome.faulty == broken
    return {
        "false": false / trials,
        "missed": missed / trials,
        "unknown": unknown / trials,
        "rounds": rounds / trials,
        "exact": exact / trials,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.node_check", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 8, 9, 64, 256, 1024])
    parser.add_argument("--percent", type=float, nargs="+", default=[0, 1, 5, 15, 25, 35, 45])
    parser.add_argument("--shows", type=float, default=1.0, help="of a broken node in a trial")
    parser.add_argument("--trials", type=int, default=100, help="of each size and share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=float, nargs="*", help="percent of the nodes that are slow")
    parser.add_argument("--noise", type=float, default=0.3, help="of each time, up or down")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    if options.slow is not None:
        return _with_slow(options)
    rows = []
    for count in options.nodes:
        seen = set()
        for percent in options.percent:
            broken = int(percent / 100 * count)
            if broken in seen:
                continue
            seen.add(broken)
            given = (count, percent / 100, options.shows, options.trials, options.seed)
            rows.append(
                {
                    "nodes": count,
                    "broken": broken,
                    "ours": measure(ours, *given),
                    "article": measure(the_articles, *given),
                }
            )
    if options.json:
        print(json.dumps({"shows": options.shows, "trials": options.trials, "rows": rows}))
        return 0
    print("means by check            ours                                  article's two rounds")
    print("nodes broken   false missed unknown rounds exact      false missed rounds exact")
    for row in rows:
        mine, theirs = row["ours"], row["article"]
        print(
            f"{row['nodes']:5d} {row['broken']:6d}  {mine['false']:6.2f} {mine['missed']:6.2f} "
            f"{mine['unknown']:7.2f} {mine['rounds']:6.2f} {mine['exact']:5.0%}    "
            f"{theirs['false']:7.2f} {theirs['missed']:6.2f} {theirs['rounds']:6.2f} "
            f"{theirs['exact']:5.0%}"
        )
    return 0


def _with_slow(options: argparse.Namespace) -> int:
    if not options.json:
        print("means by check     slow nodes                 broken nodes")
        print("nodes broken    slow   false  missed       false  missed  rounds")
    rows = []
    for count in options.nodes:
        for percent in options.percent:
            for slow in options.slow:
                given = (percent / 100, slow / 100, options.noise, options.trials, options.seed)
                row = measure_slow(count, *given)
                broken = int(percent / 100 * count)
                rows.append({"nodes": count, "broken": broken, **row})
                if not options.json:
                    print(
                        f"{count:5d} {broken:6d}  {row['slow']:6.1f}  {row['false']:6.2f}  "
                        f"{row['missed']:6.2f}      {row['faulty']:6.2f}  "
                        f"{row['overlooked']:6.2f}  {row['rounds']:6.2f}",
                        flush=True,
                    )
    if options.json:
        print(json.dumps({"noise": options.noise, "trials": options.trials, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
