"""A dump as a torch dataset, to train a drafter straight from the shards. Imports torch; nothing else here does.

    dataset = DumpDataset("/data/dumps/d1")
    loader = DataLoader(dataset, sampler=ShardSampler(dataset, seed=0), batch_size=None, num_workers=4)

or, as a stream that deals whole shards out to the workers:

    loader = DataLoader(DumpStream("/data/dumps/d1", seed=0), batch_size=None, num_workers=4)

An item is a dict of one whole request of T tokens, with K captured boundaries of hidden size H:

| key | shape | dtype | what it is |
|---|---|---|---|
| `input_ids` | [T] | int64 | the tokens that were computed: prompt, then output without its last token |
| `loss_mask` | [T] | int64 | 1 where a token is the assistant's (`kimi_agent.shards.masks`), else 0 |
| `position_ids` | [T] | int64 | 0 to T − 1 |
| `aux_hidden_states` | [T, K, H] | the dump's | residual stream after `boundaries[k]` blocks, ascending |
| `last_hidden_state` | [T, H] | the dump's | after the final norm: the head's input |
| `last_pre_norm_rms` | [T] | float32 | root mean square before that norm, where the dump has it; NaN if unknown |
| `rid` | – | str | the request's id |

States are activations as the engine computed them: no unit, no scaling. Row t belongs to token t, and its logits are
those of token t + 1. Nothing is shifted, padded or cut. Tensors are copies, so that a trainer may write into them.
"""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from kimi_agent.errors import UsageError
from kimi_agent.shards.samples import SampleRows, Samples
from kimi_capture.format import Array

Item = dict[str, Any]


class DumpDataset(Dataset):  # type: ignore[misc] # torch has no types where this is checked
    """The whole samples of a dump by number, in the order of the commits. What was committed later is not in it."""

    def __init__(self, directory: str | PathLike[str], *, check_hashes: bool = True) -> None:
        """Open a dump; each process checks a shard's hashes when it first reads it, unless told not to.

        Raises:
            UsageError: the directory is not a dump, or one of another version.
            DamagedError: a committed shard is missing, truncated or another dump's.
        """
        self.samples = Samples(Path(directory), check_hashes=check_hashes)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The K physical boundaries, ascending."""
        return self.samples.manifest.boundaries

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.samples.manifest.hidden_size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Item:
        """One request, as the module describes it. Raises DamagedError when the shard's bytes have changed."""
        return as_item(self.samples[number])


class ShardSampler(Sampler):  # type: ignore[misc]
    """Every number of a dataset once, shuffled: the shards, and the samples within each.

    Few shards are read at a time, where a plain shuffle would touch all of them at random.
    """

    def __init__(self, dataset: DumpDataset, *, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        """`rank` of `world` trainers gets every so-many-th sample, the same count for each: the rest is left out."""
        self._shards, self._seed, self._epoch = dataset.samples.shards, seed, 0
        self._rank, self._world = _place(rank, world)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle otherwise, the same way on every rank."""
        self._epoch = epoch

    def __len__(self) -> int:
        return sum(map(len, self._shards)) // self._world

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self._seed, self._epoch))
        order = [
            number
            for place in random.permutation(len(self._shards))
            for number in random.permutation(self._shards[place]).tolist()
        ]
        return iter(order[self._rank :: self._world][: len(self)])


class DumpStream(IterableDataset):  # type: ignore[misc]
    """The whole samples of a dump, shard after shard, both shuffled; each shard goes to one worker of one rank."""

    def __init__(
        self, directory: str | PathLike[str], *, seed: int | None = 0, rank: int = 0, world: int = 1,
        check_hashes: bool = True,
    ) -> None:  # fmt: skip
        """Open a dump; `seed` None keeps the order of the commits. Raises as `DumpDataset` does."""
        self.samples = Samples(Path(directory), check_hashes=check_hashes)
        self._seed, self._epoch = seed, 0
        self._rank, self._world = _place(rank, world)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle otherwise, the same way in every worker; takes effect when the next iteration begins."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        count, own = (1, 0) if worker is None else (worker.num_workers, worker.id)
        shards = self.samples.shards
        random = None if self._seed is None else np.random.default_rng((self._seed, self._epoch))
        order = range(len(shards)) if random is None else random.permutation(len(shards)).tolist()
        for turn, place in enumerate(order):
            numbers = list(shards[place]) if random is None else random.permutation(shards[place]).tolist()
            if turn % (self._world * count) == self._rank * count + own:
                yield from (as_item(self.samples[number]) for number in numbers)


def as_item(rows: SampleRows) -> Item:
    """A sample's rows as tensors of their own."""
    item = {
        "rid": rows.sample.rid,
        "input_ids": as_tensor(rows.token_ids),
        "loss_mask": as_tensor(rows.loss_mask.astype(np.int64)),
        "position_ids": as_tensor(rows.positions),
        "aux_hidden_states": as_tensor(rows.aux_hidden_states),
        "last_hidden_state": as_tensor(rows.last_hidden_state),
    }
    return item if rows.last_pre_norm_rms is None else item | {"last_pre_norm_rms": as_tensor(rows.last_pre_norm_rms)}


def as_tensor(array: Array) -> Any:
    """A tensor that holds a copy of the array; uint16 is taken as bf16. Same shape."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _place(rank: int, world: int) -> tuple[int, int]:
    if not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank} of {world}", "Ranks count from 0.")
    return rank, world
