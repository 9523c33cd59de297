"""Simulates how exact a node check is: `python -m benchmarks.node_check [--json]`.

Broken nodes are drawn at random. A group fails if one of its members is broken; an intermittent
fault shows in each trial with --shows' probability only. Beside it the two rounds of DLRover's
article: neighbours, then members of groups that failed with members of groups that passed; what
failed twice is broken.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_trainer.node_check.pairing import Group, next_groups
from elastic_trainer.node_check.verdict import Trial, Verdict, verdicts

Shows = Callable[[Group], bool]
"""Whether a group passes."""


@dataclass(frozen=True)
class Outcome:
    condemned: frozenset[str]
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
        frozenset(node for node in nodes if found[node] is Verdict.CONDEMNED),
        sum(verdict is Verdict.UNKNOWN for verdict in found.values()),
        number,
    )


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
    """Return means by trial: sound nodes condemned, broken nodes that were not, rounds."""
    draw = random.Random(seed)
    nodes = [f"node-{i}" for i in range(count)]
    false = missed = unknown = rounds = exact = 0
    for _ in range(trials):
        broken = frozenset(draw.sample(nodes, int(share * count)))

        def passes(group: Group, broken: frozenset[str] = broken) -> bool:
            return not any(node in broken and draw.random() < shows for node in group)

        outcome = rule(nodes, passes)
        false += len(outcome.condemned - broken)
        missed += len(broken - outcome.condemned)
        unknown += outcome.unknown
        rounds += outcome.rounds
        exact += outcome.condemned == broken
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
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
