"""A model's directory: complete, whole and readable, by its index and the files' headers; no weight is read."""

import json
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from kimi_agent.host.downloads import PARTIAL
from kimi_agent.host.machine import file_system
from kimi_agent.preflight.check import Check, ok, refuse, unchecked, warn
from kimi_agent.text import clean

INDEX: Final = "model.safetensors.index.json"
TOKENIZERS: Final = ("tokenizer.json", "*.model", "*.model.v*", "*.tiktoken", "vocab.*", "tekken.json", "*.spm")
FAR: Final = ("nfs", "nfs4", "lustre", "ceph", "cifs", "fuse", "9p", "beegfs", "gpfs", "wekafs")
DEADLINE: Final = 6.0
"""Seconds for all headers together."""
READERS: Final = 16
MAX_HEADER: Final = 100_000_000
SHOWN: Final = 3


def model_checks(
    model: Path, *, tokenizer: str | None, trusts: bool, wants_tokenizer: bool = True, wants_weights: bool = True
) -> list[Check]:
    """The checks of a model's directory.

    `tokenizer` is a directory given for the tokenizer alone, `trusts` whether code of the model may run.
    """
    if not model.is_dir():
        return []  # told among the problems of the command line
    config, broken = _json(model / "config.json")
    checks = [broken] if broken is not None else []
    checks += [_tokenizer(Path(tokenizer) if tokenizer else model)] if wants_tokenizer else []
    checks += [*_weights(model), *_partial(model), _far(model)] if wants_weights else []
    if config is not None and not trusts and _runs_code(model, config):
        checks.append(warn("trust", f"{model.name} brings code of its own, which SGLang only runs with leave",
                           "Add --trust-remote-code to [server] flags if you trust it."))  # fmt: skip
    return checks


def _json(path: Path) -> tuple[dict[str, Any] | None, Check | None]:
    """A JSON object, and what is wrong with it; neither when there is no such file."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not JSON"
        return None, refuse("model-files", f"{path} cannot be read: {what}", "Download that file again.")
    return data if isinstance(data, dict) else {}, None


def _runs_code(model: Path, config: dict[str, Any]) -> bool:
    tokenizer, _ = _json(model / "tokenizer_config.json")
    return "auto_map" in config or "auto_map" in (tokenizer or {})


def _tokenizer(directory: Path) -> Check:
    if any(path.is_file() for pattern in TOKENIZERS for path in directory.glob(pattern)):
        return ok("tokenizer", "a tokenizer is there")
    hint = "Download the tokenizer's files too, or name them with --tokenizer-path."
    return refuse("tokenizer", f"{directory} holds no tokenizer (tokenizer.json, tiktoken.model, …)", hint)


def _weights(model: Path) -> list[Check]:
    index, broken = _json(model / INDEX)
    if broken is not None:
        return [broken]
    present = {path.name for path in model.glob("*.safetensors")}
    mapped = index.get("weight_map") if index is not None else None
    wanted = {str(name) for name in mapped.values()} if isinstance(mapped, dict) else set()
    missing = sorted(wanted - present)
    if missing:
        return [refuse("model-files", f"{len(missing)} of {len(wanted)} weight files that {INDEX} names are missing: "
                       f"{_listed(missing)}", "Finish the download.")]  # fmt: skip
    names = sorted(wanted or present)
    if not names:
        if any(model.glob("*.bin")) or any(model.glob("*.gguf")):
            return [unchecked("model-files", "the weights are not safetensors, whose headers tell their size")]
        return [refuse("model-files", f"{model} holds no weights", "Download them, or correct server.model.")]
    return [_sizes(model, names)]


def _sizes(model: Path, names: Sequence[str]) -> Check:
    pool = ThreadPoolExecutor(READERS, "headers")
    try:
        reads = {name: pool.submit(header_problem, model / name) for name in names}
        done, late = wait(reads.values(), DEADLINE)
        bad = [f"{name} {words}" for name, read in reads.items() if read in done and (words := read.result())]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if bad:
        return refuse("model-files", f"{len(bad)} of {len(names)} weight files are damaged: {_listed(bad)}",
                      "Download them again.")  # fmt: skip
    if late:
        return unchecked("model-files", f"{len(late)} of {len(names)} headers could not be read in {DEADLINE:.0f} s: "
                         f"{model} lies on a very slow file system")  # fmt: skip
    size = sum((model / name).stat().st_size for name in names)
    return ok("model-files", f"{len(names)} weight files, {size / 1e9:.1f} GB, each as long as its header says")


def header_problem(path: Path) -> str | None:
    """What is wrong with a safetensors file, by its header and its length; `None` when nothing is."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            head = file.read(8)
            if len(head) < 8:
                return f"is {length} bytes long, which is no safetensors file"
            (size,) = struct.unpack("<Q", head)
            if size > MAX_HEADER or size + 8 > length:
                return "is cut off in its header" if size <= MAX_HEADER else "has no safetensors header"
            header = json.loads(file.read(size))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return "has a header that is no safetensors header"
    full = 8 + size + max(ends, default=0)
    return f"is truncated: {length:,} of {full:,} bytes" if length < full else None


def _partial(model: Path) -> list[Check]:
    cache = model / ".cache" / "huggingface" / "download"
    found = sorted(
        path.name for place in (model, cache) if place.is_dir() for path in place.iterdir()
        if path.name.endswith(PARTIAL)
    )  # fmt: skip
    if not found:
        return []
    hint = "If a download still runs, wait for it; if not, start it again, it goes on where it stopped."
    return [warn("partial-download", f"{len(found)} partial downloads lie in {model}: {_listed(found)}", hint)]


def _far(model: Path) -> Check:
    place, kind = file_system(str(model))
    if kind.startswith(FAR):
        hint = "Add --weight-loader-disable-mmap to [server] flags, or copy the model to a local disk."
        return warn("model-storage", f"the model lies on {kind} ({place}): mapped reading is slow there", hint)
    return ok("model-storage", f"the model lies on {kind}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return clean(", ".join(names[:SHOWN])) + more
