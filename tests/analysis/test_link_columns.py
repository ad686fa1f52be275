"""What links are judged by has its own columns and headings, and is no accuracy."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.across.sibling_key import training_key
from analysis.loading.cell_rows import flat_settings
from analysis.report.link_columns import judged_in_words, link_columns
from analysis.summary.learnt_columns import is_share, learnt_columns
from tests.tools.cells import linked, sampled

NAMES = ["train_loss", "test_loss", "val_auc", "test_auc", "test_mrr", "test_hits@10"]


def test_metrics_of_links_are_shares_with_headings() -> None:
    assert [name for name in NAMES if is_share(name)] == NAMES[2:]
    assert link_columns([*NAMES, "test_accuracy", "test_auc_low", "test_hits@10_high"]) == {
        "val_auc": "validation AUC",
        "test_auc": "test AUC",
        "test_mrr": "test MRR",
        "test_hits@10": "test hits@10",
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["test_loss", "test_accuracy"], "accuracies"),
        (["test_loss", "test_auc"], "ranks of links"),
        (["test_auc", "test_accuracy"], "accuracies, and ranks of links"),
    ],
)
def test_a_table_says_what_its_metrics_are(names: list[str], words: str) -> None:
    assert judged_in_words(names) == words


def test_a_row_has_the_mean_over_seeds_of_each_metric() -> None:
    used = pd.DataFrame({"seed": [0, 0, 1], "test_auc": [0.6, 0.6, 0.9], "test_hits@10": [0.1] * 3})
    found = learnt_columns(used)
    assert found["test_auc"] == pytest.approx(0.7)
    low, high = found["test_auc_low"], found["test_auc_high"]
    assert low is not None
    assert high is not None
    assert 0.0 <= low < 0.75 < high <= 1.0
    assert found["test_hits@10"] == pytest.approx(0.1)


def test_cells_that_learn_links_are_like_no_others() -> None:
    keys = {
        training_key(linked()),
        training_key(sampled()),
        training_key(linked(task={"negatives": 2, "hits": 3})),
        training_key(linked(task={"embedding": 9, "hits": 3})),
    }
    assert len(keys) == 4
    assert training_key(linked(layout="dp2", batch_size=12)) == training_key(linked())
    assert flat_settings(linked())["task_negatives"] == 1
