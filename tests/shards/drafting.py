"""Run by the engine's Python: the smallest drafter there is, one linear layer, trained straight from a dump.

`python drafting.py DUMP STEPS`: from the captured boundaries of a token to the last hidden state of the next one; the
losses as one line of JSON.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from kimi_agent.shards.dataset import DumpStream

SAMPLES = 16
"""Requests of one step."""


def batches(directory: str) -> Iterator[list[Any]]:
    stream = DumpStream(directory, seed=0)
    batch: list[Any] = []
    for epoch in range(1_000):
        stream.set_epoch(epoch)
        for item in DataLoader(stream, batch_size=None, num_workers=2):
            batch.append(item)
            if len(batch) == SAMPLES:
                yield batch
                batch = []


def train(directory: str, steps: int) -> list[float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    held = DumpStream(directory).samples.manifest
    layer = torch.nn.Linear(len(held.boundaries) * held.hidden_size, held.hidden_size)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=4e-3)
    losses = []
    for _, batch in zip(range(steps), batches(directory), strict=False):
        given = torch.cat([item["aux_hidden_states"][:-1].flatten(1).float() for item in batch])
        following = torch.cat([item["last_hidden_state"][1:].float() for item in batch])
        counts = torch.cat([item["loss_mask"][1:] for item in batch]).bool()
        loss = torch.nn.functional.smooth_l1_loss(layer(given)[counts], following[counts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]))))
