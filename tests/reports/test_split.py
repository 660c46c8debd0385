"""Scores per class, confusions and hardest queries, compared with a slow count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.evaluation import evaluate
from nearkin.reports.split import class_scores, confusions, worst_queries
from nearkin.space import Space


def test_class_scores_and_confusions_match_a_slow_count() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (40,), generator=generator)
    labels[0] = 9  # alone in its class, so it has no positive
    is_query = torch.rand(40, generator=generator) < 0.7
    space = Space(torch.randn(40, 2, generator=generator), labels, torch.arange(40), is_query)
    evaluation = evaluate(space, clustering=None)
    right: dict[int, list[bool]] = {}
    confused: dict[tuple[int, int], int] = {}
    places = []
    for query in is_query.nonzero().squeeze(1).tolist():
        order = (space.embeddings - space.embeddings[query]).norm(dim=1).argsort().tolist()
        order.remove(query)
        found = [labels[row].item() == labels[query].item() for row in order]
        if not any(found):
            continue
        right.setdefault(int(labels[query]), []).append(found[0])
        places.append((found.index(True) + 1, query))
        if not found[0]:
            pair = (int(labels[query]), int(labels[order[0]]))
            confused[pair] = confused.get(pair, 0) + 1
    rows = {row.label: row for row in class_scores(space, evaluation)}
    assert {label: row.recall for label, row in rows.items()} == pytest.approx(
        {label: np.mean(found) for label, found in right.items()}
    )
    assert all(row.items == int((labels == label).sum()) for label, row in rows.items())
    pairs = confusions(space, evaluation, limit=100)
    assert {(each.label, each.other): each.count for each in pairs} == confused
    assert all((labels[each.query], labels[each.neighbour]) == (each.label, each.other) for each in pairs)
    assert [each.count for each in pairs] == sorted(confused.values(), reverse=True)
    hardest = [int(space.queries[place]) for place in worst_queries(space, evaluation, 3)]
    assert max(places)[0] == next(place for place, query in places if query == hardest[0])
    assert len({int(labels[query]) for query in hardest}) == 3
