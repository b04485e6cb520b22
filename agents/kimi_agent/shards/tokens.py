"""Token ids as text, by the vocabulary beside the model's weights; only decoding, so no tokenizer code is run."""

import base64
import binascii
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_agent.text import clean

PIECE_LIMIT = 64
"""Characters of one token's text."""
TEXT_LIMIT = 4000
"""Characters of a sample's text."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of the tokens that were asked for."""

    source: str
    """Where the text comes from, or why there is none."""
    table: dict[int, bytes]

    def piece(self, token: int) -> str:
        """One token's text, clean; empty when unknown."""
        return clean(self.table.get(token, b"").decode("utf-8", "replace"), PIECE_LIMIT)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of consecutive tokens, clean; a character split over tokens is whole again."""
        return clean(b"".join(self.table.get(token, b"") for token in tokens).decode("utf-8", "replace"), TEXT_LIMIT)


def load_vocabulary(model: str | None, tokens: Iterable[int]) -> Vocabulary:
    """The text of `tokens` in the vocabulary of a model: a directory, or a name in the Hugging Face cache."""
    wanted = set(tokens)
    directory = model_directory(model)
    if directory is None:
        return Vocabulary(f"ids only: the model {clean(model or 'of the dump')} is not on this host", {})
    ranks, whole = directory / "tiktoken.model", directory / "tokenizer.json"
    try:
        if ranks.is_file():
            return Vocabulary(clean(str(ranks)), _from_ranks(ranks, wanted))
        if whole.is_file():
            return _from_tokenizers(whole, wanted)
    except (OSError, ValueError, RecursionError) as error:
        return Vocabulary(clean(f"ids only: the tokenizer in {directory} cannot be read: {error}"), {})
    return Vocabulary(clean(f"ids only: {directory} has neither tiktoken.model nor tokenizer.json"), {})


def model_directory(model: str | None) -> Path | None:
    """Where a model lies on this host: a directory, or a name in the Hugging Face cache; None when it does not."""
    if not model:
        return None
    if Path(model).is_dir():
        return Path(model)
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{model.replace('/', '--')}"
    snapshots = sorted((cache / "snapshots").glob("*/"), key=lambda path: path.stat().st_mtime)
    return snapshots[-1] if snapshots else None


def _from_ranks(path: Path, wanted: set[int]) -> dict[int, bytes]:
    """The wanted tokens of a tiktoken file (a line is `base64 rank`) and of the special tokens beside it.

    Only what is wanted is kept: Kimi's 163 840 entries would weigh on the agent for a screen of a few hundred.
    """
    table: dict[int, bytes] = {}
    for line in path.read_bytes().splitlines():
        token, _, rank = line.partition(b" ")
        if rank.isdigit() and int(rank) in wanted:
            try:
                table[int(rank)] = base64.b64decode(token, validate=True)
            except binascii.Error:
                raise ValueError(f"the token of rank {int(rank)} is not base64") from None
    return table | _special_tokens(path.with_name("tokenizer_config.json"), wanted)


def _special_tokens(path: Path, wanted: set[int]) -> dict[int, bytes]:
    if not path.is_file():
        return {}
    config: Any = json.loads(path.read_bytes())
    added = config.get("added_tokens_decoder") if isinstance(config, dict) else None
    if not isinstance(added, dict):
        return {}
    return {
        int(token): str(entry["content"]).encode("utf-8", "replace")
        for token, entry in added.items()
        if token.isdigit() and int(token) in wanted and isinstance(entry, dict) and "content" in entry
    }


def _from_tokenizers(path: Path, wanted: set[int]) -> Vocabulary:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 (SGLang brings it, a bare host may lack it)
    except ImportError:
        return Vocabulary(clean(f"ids only: the Python package tokenizers, to read {path}, is not installed"), {})
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(str(error)) from error
    return Vocabulary(clean(str(path)), {token: _token_bytes(tokenizer, token) for token in wanted})


def _token_bytes(tokenizer: Any, token: int) -> bytes:
    """A token's bytes: by the alphabet of byte-level vocabularies, else as the tokenizer decodes it alone."""
    spelled: str | None = tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
    if spelled is None:
        return b""
    if len(spelled) == 6 and spelled.startswith("<0x") and spelled.endswith(">"):
        return bytes.fromhex(spelled[3:5])
    alone: str = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" in alone and all(character in BYTE_LEVEL for character in spelled):
        return bytes(BYTE_LEVEL[character] for character in spelled)
    if spelled.startswith("▁"):  # a word's first piece: decoded alone, SentencePiece drops its space
        alone = f" {alone.lstrip(' ')}"
    return alone.encode()


def _byte_level() -> dict[str, int]:
    """The printable characters by which byte-level BPE spells bytes: itself if printable Latin-1, else from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(shifted)}


BYTE_LEVEL = _byte_level()
