"""Groups the nodes for the next round of a node check; pure.

The first two rounds are those of DLRover's article: neighbours meet; members of groups that failed
meet nodes of groups that passed. Where these two leave a doubt, further ones follow, until each
node is proven or faulty. Below half of the nodes broken that end is always reached: some group
is sound within `SEARCH_ROUNDS`, and each round after it settles as many nodes as are proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastic_trainer.node_check.verdict import Evidence, Trial

SEARCH_ROUNDS = 4
"""Rounds without any group that passes, after which no more are held. In the first, each group has
a broken node, so at least half are broken, but where an odd node makes a group of three: two of
those are sound then, and three more rounds have all its pairs."""

Group = tuple[str, ...]


def next_groups(nodes: Sequence[str], trials: Sequence[Trial]) -> tuple[Group, ...]:
    """Return the groups of the next round; none: there is nothing left to find out.

    Args:
        nodes: those that are there, in order; neighbours meet first.
        trials: of the rounds so far, also with nodes that have gone since.
    """
    if not trials:
        return _neighbours(nodes)
    evidence = Evidence.of(trials)
    able = [node for node in nodes if node not in evidence.unable]
    suspects = [n for n in able if n not in evidence.proven and n not in evidence.faulty]
    proven = [node for node in able if node in evidence.proven]
    if not proven and max(trial.round for trial in trials) >= SEARCH_ROUNDS:
        return ()
    groups, left = _pair(_trios_first(suspects, trials), proven, evidence)
    groups += _pair_among(left, evidence)
    busy = {node for group in groups for node in group}
    doubted = evidence.slow.keys() - evidence.judged
    slow = [node for node in proven if node in doubted and node not in busy]
    quick = [node for node in proven if node not in evidence.slow and node not in busy]
    groups += _pair(slow, quick, evidence)[0]
    return tuple(groups)


def _neighbours(nodes: Sequence[str]) -> tuple[Group, ...]:
    if len(nodes) < 2:
        return ()
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        groups[-1] = tuple(nodes[-3:])
    return tuple(groups)


def _trios_first(suspects: Sequence[str], trials: Iterable[Trial]) -> list[str]:
    """Puts a group of three first, whose pairs must all meet while nobody is proven."""
    trio = {node for trial in trials if len(trial.members) > 2 for node in trial.members}
    return sorted(suspects, key=lambda node: node not in trio)


def _pair(
    ones: Sequence[str], others: Sequence[str], evidence: Evidence
) -> tuple[list[Group], list[str]]:
    """Pairs each of `ones` with another of `others` that it has not met; and those left over."""
    free = dict.fromkeys(others)
    groups: list[Group] = []
    left = []
    for node in ones:
        met = evidence.met.get(node, ())
        other = next((one for one in free if one not in met), None)
        if other is None:
            left.append(node)
        else:
            del free[other]
            groups.append((node, other))
    return groups, left


def _pair_among(nodes: Sequence[str], evidence: Evidence) -> list[Group]:
    free = dict.fromkeys(nodes)
    groups: list[Group] = []
    for node in nodes:
        if node not in free:
            continue
        del free[node]
        met = evidence.met.get(node, ())
        other = next((one for one in free if one not in met), None)
        if other is not None:
            del free[other]
            groups.append((node, other))
    return groups
