"""The order of examples in a run: batches, epochs and ranks."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from gesso.errors import InputError
from gesso.train.data import Example
from gesso.train.order import WINDOW, order
from tests.train.datasets import REPLY, USER, dataset, write


def first_batches(lengths: np.ndarray, batch_size: int, count: int, seed: int = 0, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in islice(order(lengths, batch_size, seed, start), count)]


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 1), (1, 4), (3, 8), (8, 4), (103, 10), (1000, 3), (700, 4)])
def test_order_from_any_start_equals_uninterrupted_order(rows, batch_size):
    lengths = np.random.default_rng(1).integers(2, 500, rows)
    batches = first_batches(lengths, batch_size, 800)
    for start in (*range(0, 120, 7), 255, 256, 257, 332, 333, 334, 700):
        assert first_batches(lengths, batch_size, 5, start=start) == batches[start : start + 5]


@pytest.mark.parametrize(("rows", "batch_size"), [(1, 4), (3, 8), (103, 10), (1000, 3)])
def test_every_row_comes_once_per_epoch(rows, batch_size):
    lengths = np.random.default_rng(1).integers(2, 500, rows)
    epochs = 3 * batch_size
    seen = Counter(row for batch in first_batches(lengths, batch_size, epochs * rows // batch_size) for row in batch)
    assert seen == dict.fromkeys(range(rows), epochs)
    whole = first_batches(lengths, batch_size, rows // batch_size)  # of the first epoch
    assert max(Counter(row for batch in whole for row in batch).values(), default=1) == 1


def test_rows_of_similar_length_share_a_batch_in_random_order():
    lengths = np.random.default_rng(1).integers(2, 10_000, 8 * WINDOW * 4)
    batches = first_batches(lengths, 8, WINDOW * 4)
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < 10_000 / WINDOW  # a plain shuffle has about 7,800
    means = [lengths[batch].mean() for batch in batches[:WINDOW]]
    assert abs(np.corrcoef(means, range(WINDOW))[0, 1]) < 0.5


def test_small_dataset_gets_new_batches_in_every_epoch():
    met = {frozenset(batch) for batch in first_batches(np.arange(8), 4, 200)}
    assert len(met) > 60  # of 70 possible batches; if all rows were sorted, there would be two


def test_epochs_and_seeds_differ_in_order():
    lengths = np.full(64, 9)
    first, second = (first_batches(lengths, 64, 1, start=start)[0] for start in (0, 1))
    other = first_batches(lengths, 64, 1, seed=1)[0]
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(64))}) == 4


def test_order_is_stable_across_versions():
    """Later versions of gesso and numpy must resume a run in its original order."""
    assert first_batches(np.arange(34) % 9, 4, 5, seed=7, start=6) == [
        [27, 28, 1, 2],
        [5, 7, 17, 8],
        [19, 16, 25, 11],
        [3, 22, 32, 24],
        [27, 1, 29, 2],
    ]


def test_batches_of_all_ranks_equal_those_of_one_process(tmp_path, tokenizer):
    rows = dataset(tokenizer, write(tmp_path / "a.jsonl", *({"text": "x" * n} for n in range(1, 24))))
    ranks = [list(islice(rows.batches(6, start=2, rank=rank, world=3), 9)) for rank in range(3)]
    together = [sum(shares, ()) for shares in zip(*ranks, strict=True)]
    assert together == list(islice(rows.batches(6), 2, 11))
    assert {len(share) for shares in ranks for share in shares} == {2}


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"world": 3}, {"rank": 1}, {"rank": -1}, {"start": -1}])
def test_invalid_batch_arguments_are_rejected_at_once(tmp_path, tokenizer, wrong):
    rows = dataset(tokenizer, write(tmp_path / "a.jsonl", {"text": "a"}))
    with pytest.raises(InputError, match="cannot cut batches"):
        rows.batches(**({"batch_size": 4} | wrong))


def test_batches_contain_the_rows_of_the_files(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"text": "ä"}, b"{", {"messages": [USER, REPLY]}, {"text": "ß" * 9})
    other = write(tmp_path / "b.jsonl", {"prompt": "p", "completion": "c"})
    rows = dataset(tokenizer, name, other)
    (batch,) = islice(rows.batches(4), 1)
    assert sorted(batch, key=lambda example: (example.source, example.line)) == [
        row for row in rows.read() if isinstance(row, Example)
    ]


def test_files_may_change_after_they_are_read(tmp_path, tokenizer):
    name = write(tmp_path / "a.jsonl", {"text": "a"})
    rows = dataset(tokenizer, name)
    before = list(rows.read())
    Path(name).unlink()
    assert list(rows.read()) == before == [*next(rows.batches(1))]
