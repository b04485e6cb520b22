"""States beside the journal, so that an agent's start need not go through all of it."""

import logging
import re
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from kimi_agent.model.state import State
from kimi_agent.record.states import decode_state, encode_state, fingerprint

KEPT: Final = 2
_NAME: Final = re.compile(r"(\d{12})-([0-9a-f]{16})\.state")

log = logging.getLogger(__name__)


class Checkpoints:
    """The newest states of one journal, named by the event after which they held and by the fields they have."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, state: State) -> None:
        """Keep a state; the disk being full is no harm, since the journal holds all of it.

        Raises:
            OSError: it cannot be written.
        """
        path = self._directory / f"{state.seq:012d}-{fingerprint()}.state"
        part = path.with_suffix(".tmp")
        compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        part.write_bytes(compressor.compress(encode_state(state)))
        part.rename(path)
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)

    def newest(self, last: int) -> State:
        """The newest state at or before the event `last` that can be read; the empty one when there is none."""
        for path in reversed(self._files()):
            match = _NAME.fullmatch(path.name)
            if match is None or int(match[1]) > last or match[2] != fingerprint():
                continue
            try:
                return decode_state(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
            except (OSError, zstandard.ZstdError, msgspec.MsgspecError) as error:
                log.warning("%s cannot be used: %s", path, error)
        return State()

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("*.state"))
