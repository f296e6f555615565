"""The order of training data: which rows form batch number n."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

WINDOW = 64  # batches sorted by length together, at most

Ids = npt.NDArray[np.int64]


def order(lengths: Ids, batch_size: int, seed: int, start: int = 0) -> Iterator[Ids]:
    """Yield the rows of batch `start`, `start + 1`, …: a pure function of the arguments that skips earlier batches.

    An epoch is a shuffle of all rows, and epochs follow each other without a gap. Its whole batches are grouped into
    windows of `WINDOW`, or of a quarter of the epoch if that is less; sorting all rows would put the same ones together
    in every epoch. Each window is sorted by length, cut into batches, and the batches are shuffled: rows of similar
    length share a batch, and lengths still come in random order. A batch that spans two epochs takes the last rows of
    one and the first of the next, whatever their lengths. So no row is left out or repeated within an epoch.
    """
    rows = len(lengths)
    width = max(1, min(WINDOW, rows // (4 * batch_size)))

    def shuffled(count: int, epoch: int, window: int) -> Ids:
        # Raw bits have a fixed sequence; `permutation` may use them differently in another numpy release.
        return np.argsort(np.random.PCG64([seed, epoch, window]).random_raw(count), kind="stable")

    batch = start
    while True:
        epoch, skipped = divmod(batch * batch_size, rows)
        begin, end = epoch * rows, (epoch + 1) * rows
        last = end // batch_size  # the epoch's whole batches are those from ceil(begin / batch_size) up to this one
        if batch == last:
            stop = (batch + 1) * batch_size
            epochs = range(epoch, -(-stop // rows))
            yield np.concatenate([shuffled(rows, e, 0) for e in epochs])[skipped : skipped + batch_size]
            batch += 1
            continue
        rows_of_epoch = shuffled(rows, epoch, 0)
        for first in range(-(-begin // batch_size), last, width):
            past = min(first + width, last)
            if past <= batch:
                continue
            window = rows_of_epoch[first * batch_size - begin : past * batch_size - begin]
            by_length = window[np.argsort(lengths[window], kind="stable")].reshape(-1, batch_size)
            yield from by_length[shuffled(past - first, epoch, 1 + first)][batch - first :]
            batch = past
