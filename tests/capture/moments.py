"""Run by the engine's Python with TRITON_INTERPRET=1: prints whether the GPU's kernel computes what the host does."""

import numpy as np
import torch

from kimi_capture.device import write_moments
from kimi_capture.statistics import shard_moments, shard_statistics

ROWS, BOUNDARIES, HIDDEN = 5, 3, 1500


def main() -> None:
    torch.manual_seed(0)
    aux, last = torch.randn(ROWS, BOUNDARIES, HIDDEN).bfloat16(), torch.randn(ROWS, HIDDEN).bfloat16()
    aux[2], last[4] = aux[1], 0
    aux[3, 1, 7], aux[3, 1, 9] = float("nan"), float("inf")
    device = torch.zeros(ROWS, BOUNDARIES + 1, 4)
    write_moments(aux, last, device)
    states = [*np.moveaxis(aux.view(torch.int16).numpy().view(np.uint16), 1, 0)]
    states.append(last.view(torch.int16).numpy().view(np.uint16))
    host = shard_moments(np.stack(states[:-1], axis=1), states[-1])
    assert np.allclose(device.numpy(), host, rtol=1e-4, atol=1e-2)
    found = shard_statistics(device.numpy(), ["2", "3", "4", "last"], lambda row, column: states[column][row])
    print([(one.non_finite, one.zero_rows, one.duplicate_rows) for one in found.values()])


if __name__ == "__main__":
    main()
