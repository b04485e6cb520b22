"""Run as a child by the server's Python: the rows of a dataset as token ids, one JSON line each, in order.

`python -m kimi_agent.feed.encode DATASET TOKENIZER [--trust-remote-code] [--chat-template FILE] [--regenerate]`
prints {"ids": base64 of int32, "spans": [[from, to], …], "generate": bool} for a row that can be fed, else
{"kind", "why"}. The last line of stderr says why when it fails as a whole.
"""

import argparse
import base64
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kimi_agent.feed.rows import Conversation, Prompt, Row, RowError, Tokens, parse_row

PARQUET: Final = (".parquet", ".pq")
BATCH: Final = 1024
"""Rows of a Parquet file that are read at a time."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row as it is sent."""

    ids: Sequence[int]
    spans: list[tuple[int, int]]
    """Positions from and up to, of assistant turns in it."""
    generate: bool
    """Whether the engine is to answer; else the answer is in it already."""
    masked: bool = True
    """Whether the spans, and the answer, are all that counts; False when the row says nothing of it."""


class Encoder:
    """A model's tokenizer and chat template, loaded when the first row needs them."""

    def __init__(self, tokenizer: str, template: Path | None, *, trust: bool, regenerate: bool) -> None:
        self._path, self._template, self._trust, self._regenerate = tokenizer, template, trust, regenerate
        self._loaded: Any = None

    def encode(self, row: Row) -> Encoded:
        """A row's tokens. Raises RowError when the tokenizer or the template cannot take it."""
        if isinstance(row, Tokens):
            return self._given(row)
        if isinstance(row, Prompt):
            return self._prompt(row)
        return self._conversation(row)

    def _given(self, row: Tokens) -> Encoded:
        spans = [] if row.mask is None else _runs(row.mask)
        return Encoded(row.ids, spans, self._regenerate, masked=row.mask is not None or self._regenerate)

    def _prompt(self, row: Prompt) -> Encoded:
        ids = self._ids(row.text, special=True)
        if row.answer is None or self._regenerate:
            return Encoded(ids, [], generate=True)
        answer = self._ids(row.answer, special=False)
        return Encoded([*ids, *answer], [(len(ids), len(ids) + len(answer))], generate=False)

    def _conversation(self, row: Conversation) -> Encoded:
        messages = list(row.messages)
        if self._regenerate and messages[-1]["role"] == "assistant":
            messages.pop()
        generate = messages[-1]["role"] != "assistant"
        text = self._render(messages, prompt=generate)
        ids = self._ids(text, special=False)
        spans = []
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._render(messages[:place], prompt=True)
                through = self._render(messages[: place + 1], prompt=False)
                if not text.startswith(before) or not text.startswith(through):
                    raise RowError("template", f"the chat template renders turn {place} otherwise once others follow")
                # A token over the edge of a turn is the turn's: its text alone would be tokenized otherwise.
                first, last = (_common(self._ids(part, special=False), ids) for part in (before, through))
                spans.append((first, last))
        return Encoded(ids, spans, generate)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer()(text, add_special_tokens=special)["input_ids"]
        if not ids:
            raise RowError("empty", "it has no tokens")
        return ids

    def _render(self, messages: list[Any], *, prompt: bool) -> str:
        tokenizer = self._tokenizer()
        if not tokenizer.chat_template:
            raise RowError("template", f"{self._path} has no chat template: give one with --chat-template")
        try:
            text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        except Exception as error:  # a template raises what its author chose
            raise RowError("template", f"the chat template does not take it: {error}") from error
        return text

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            from transformers import AutoTokenizer  # noqa: PLC0415 - token ids need no tokenizer

            self._loaded = AutoTokenizer.from_pretrained(self._path, trust_remote_code=self._trust)
            if self._template is not None:
                self._loaded.chat_template = self._template.read_text("utf-8")
        return self._loaded


def read_values(dataset: Path) -> Iterator[Any]:
    """The rows of a JSONL or Parquet file as values, in order; a line that is no JSON is a RowError in its place."""
    if dataset.suffix in PARQUET:
        from pyarrow import parquet  # noqa: PLC0415 - only for these files

        for batch in parquet.ParquetFile(dataset).iter_batches(BATCH):
            yield from batch.to_pylist()
        return
    with dataset.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line) if line.strip() else RowError("empty", "the line is empty")
            except (ValueError, RecursionError) as error:
                yield RowError("malformed", f"the line is not JSON: {error}")


def encode_all(dataset: Path, encoder: Encoder) -> Iterator[dict[str, Any]]:
    """One answer for each row of the dataset."""
    for value in read_values(dataset):
        try:
            if isinstance(value, RowError):
                raise value
            encoded = encoder.encode(parse_row(value))
        except RowError as error:
            yield {"kind": error.kind, "why": error.why}
        else:
            ids = base64.b64encode(array("i", encoded.ids).tobytes()).decode()
            yield {"ids": ids, "spans": encoded.spans, "generate": encoded.generate, "masked": encoded.masked}


def main(arguments: Sequence[str]) -> int:
    """The child's command line."""
    parser = argparse.ArgumentParser(prog="python -m kimi_agent.feed.encode")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--chat-template", type=Path)
    parser.add_argument("--regenerate", action="store_true")
    args = parser.parse_args(arguments)
    encoder = Encoder(
        args.tokenizer, args.chat_template, trust=args.trust_remote_code, regenerate=args.regenerate
    )  # fmt: skip
    try:
        for answer in encode_all(args.dataset, encoder):
            sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    except ImportError as error:
        print(f"the Python package {error.name} is needed and not installed in {sys.executable}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except (OSError, ValueError) as error:
        print(str(error).strip().split("\n")[0], file=sys.stderr)
        return 1
    sys.stdout.flush()
    return 0


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    padded = (0, *mask, 0)
    edges = [place for place in range(len(mask) + 1) if padded[place] != padded[place + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
