"""What a feed will send: requests by content, each once, their tokens in a file so that memory stays small."""

import base64
import json
import os
import subprocess
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import xxhash

import kimi_agent
from kimi_agent.errors import KimiError
from kimi_agent.shards.masks import Mask
from kimi_agent.text import clean

PREFIX: Final = "feed-"
"""How the request ids begin; the rest is a hash of what is sent."""
TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its content is its name, so that it is known again in any dump and any feed."""

    row: int
    """The first row of the dataset that asks for it, from 0."""
    rid: str
    offset: int
    """Where its tokens begin in the spool, in tokens."""
    tokens: int
    new: int
    """Most tokens that the engine is to generate; 0 when the answer is among the tokens."""
    mask: Mask | None

    @property
    def rows(self) -> int:
        """Rows that a dump will have of it, at most."""
        return self.tokens + max(self.new, 1) - 1


@dataclass(frozen=True, slots=True)
class Missing:
    """A row that is not captured."""

    row: int
    kind: str
    """`empty`, `malformed`, `template`, `too long`, `refused`, `failed` or `not sent`."""
    why: str


@dataclass(slots=True)
class Batch:
    """All requests of a dataset, and what is known of its other rows."""

    spool: IO[bytes]
    """The tokens of all requests, int32."""
    requests: list[Request] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    duplicates: dict[str, list[int]] = field(default_factory=dict)
    """Further rows that ask for the same, by request id."""
    rows: int = 0

    def ids(self, request: Request) -> list[int]:
        """A request's tokens."""
        data = os.pread(self.spool.fileno(), request.tokens * TOKEN_BYTES, request.offset * TOKEN_BYTES)
        return array("i", data).tolist()

    @property
    def expected_rows(self) -> int:
        """Rows that a dump will have of all requests, at most."""
        return sum(request.rows for request in self.requests)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How rows become requests."""

    dataset: Path
    tokenizer: str
    python: str
    trust: bool
    template: Path | None
    regenerate: bool
    new: int
    """Most tokens of a generated answer."""
    temperature: float
    longest: int | None
    """Most tokens of a request with its answer that the server takes; None where it does not say."""


def gather(wanted: Wanted, spool: IO[bytes]) -> Batch:
    """Encode a whole dataset; `spool` is an empty file for its tokens.

    Raises:
        KimiError: the dataset cannot be read, or the tokenizer not be loaded.
    """
    batch = Batch(spool)
    seen: set[str] = set()
    offset = 0
    for answer in _encoded(wanted):
        row = batch.rows
        batch.rows += 1
        if "kind" in answer:
            batch.missing.append(Missing(row, str(answer["kind"]), clean(str(answer["why"]), 400)))
            continue
        data = base64.b64decode(answer["ids"])
        request = _request(wanted, row, data, answer, offset)
        if wanted.longest is not None and request.tokens + request.new > wanted.longest:
            length = f"{request.tokens:,} tokens" + (f" and {request.new:,} to answer" if request.new else "")
            batch.missing.append(Missing(row, "too long", f"{length}, the server takes {wanted.longest:,}"))
        elif request.rid in seen:
            batch.duplicates.setdefault(request.rid, []).append(row)
        else:
            seen.add(request.rid)
            batch.spool.write(data)
            batch.requests.append(request)
            offset += request.tokens
    batch.spool.flush()
    return batch


def _request(wanted: Wanted, row: int, data: bytes, answer: dict[str, Any], offset: int) -> Request:
    new = wanted.new if answer["generate"] else 0
    how = f"{new}/{wanted.temperature:g}" if new else "given"
    rid = PREFIX + xxhash.xxh3_128_hexdigest(data + how.encode())
    spans = tuple((int(first), int(last)) for first, last in answer["spans"])
    mask = Mask(spans, output=new > 0) if answer["masked"] else None
    return Request(row, rid, offset, len(data) // TOKEN_BYTES, new, mask)


def _encoded(wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The child's answers, one a row."""
    command: Sequence[str] = (
        wanted.python, "-m", "kimi_agent.feed.encode", str(wanted.dataset), wanted.tokenizer,
        *(("--trust-remote-code",) if wanted.trust else ()), *(("--regenerate",) if wanted.regenerate else ()),
        *(("--chat-template", str(wanted.template)) if wanted.template else ()),
    )  # fmt: skip
    root = str(Path(kimi_agent.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile() as words:
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, stdin=subprocess.DEVNULL, env=env)
        except OSError as error:
            raise KimiError(f"{wanted.python} cannot be run: {error.strerror}", "Name another --python.") from error
        with child:
            for line in child.stdout or ():
                yield json.loads(line)
        if child.returncode:
            words.seek(0)
            said = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            hint = "Correct the dataset, the tokenizer or --python, which is to be the server's."
            raise KimiError(clean(f"{wanted.dataset} cannot be read: {said or 'the tokenizer ended'}", 400), hint)
