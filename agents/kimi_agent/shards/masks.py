"""Which tokens of a sample a drafter is trained on: what a feed wrote beside the shards, or else what was generated."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from kimi_agent.errors import KimiError
from kimi_capture.format import Sample

FEED: Final = "feed.jsonl"
"""In the dump: one line for each request that a feed sent, with its request id and its assistant turns."""
FED: Final = "feed"
GENERATED: Final = "generated tokens"
ALL: Final = "all tokens"
"""Where a mask comes from: a feed; the engine's own answer; nowhere, so that every token counts."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The tokens of one request that count."""

    spans: tuple[tuple[int, int], ...]
    """Positions from and up to, of assistant turns that were in the prompt."""
    output: bool
    """Whether what the engine generated counts too."""


def read_masks(directory: Path) -> dict[str, Mask]:
    """The masks that feeds left in a dump, by request id; none when there was no feed.

    A last line that a crash tore is left out: its request was never sent. Raises KimiError when another line or the
    file cannot be read: a mask that is guessed would train on the wrong tokens.
    """
    path = directory / FEED
    try:
        with path.open("rb") as file:
            return dict(_parse(path, place, line) for place, line in enumerate(file, 1) if line.endswith(b"\n"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KimiError(f"{path} cannot be read: {error.strerror}", "Check its permissions and the disk.") from error


def _parse(path: Path, place: int, line: bytes) -> tuple[str, Mask]:
    try:
        entry = orjson.loads(line)
        spans = tuple((int(first), int(last)) for first, last in entry["spans"])
        return str(entry["rid"]), Mask(spans, bool(entry["output"]))
    except (ValueError, KeyError, TypeError) as error:
        hint = "Copy it again from the host that wrote it; without it the loss masks are not known."
        raise KimiError(f"{path}: line {place} is damaged", hint, slug="masks") from error


def loss_mask(sample: Sample, mask: Mask | None) -> tuple[npt.NDArray[np.uint8], str]:
    """[rows] uint8, 1 where a token counts, for a sample whose rows are all there; and where that comes from."""
    found = np.zeros(sample.rows, np.uint8)
    if mask is not None:
        for first, last in mask.spans:
            found[max(first, 0) : max(last, 0)] = 1
        if mask.output:
            found[sample.prompt_tokens :] = 1
        return found, FED
    if sample.rows > sample.prompt_tokens:
        found[sample.prompt_tokens :] = 1
        return found, GENERATED
    found[:] = 1
    return found, ALL


def mask_words(sources: Mapping[str, int]) -> str:
    """`feed 1,998 · all tokens 2`: how many samples have their mask from where."""
    return " · ".join(f"{source} {count:,}" for source, count in sorted(Counter(sources).items()))


def mask_line(rid: str, mask: Mask, **more: Any) -> bytes:
    """The line of `feed.jsonl`, with its newline."""
    return orjson.dumps({"rid": rid, "spans": mask.spans, "output": mask.output, **more}) + b"\n"
