"""Which boundaries a model class captures for which flags, before it is loaded, and which of them a drafter wants."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kimi_agent.engine.argv import LAYERS_FLAG, Problem
from kimi_agent.errors import UsageError

RAW_UNLESS_ONE: Final = (
    "Deepseek", "KimiK2", "KimiK25", "Glm4MoeLite", "MistralLarge3", "Glm5", "GlmMoeDsa",
)  # fmt: skip
"""How the architectures begin whose flag ids are boundaries, unless the first id is 1: then one is added to each."""
RAW_IF_LAST: Final = "GptOss"
"""The architecture whose ids are boundaries when the last one is the number of layers, else one is added."""
METHOD: Final = "set_eagle3_layers_to_capture"
ENGINE_KEYS: Final = ("eagle_aux_hidden_state_layer_ids",)
"""Where a drafter's config says what an engine is to hand it, in the engine's own ids."""
OUTPUT_KEYS: Final = ("aux_hidden_state_layer_ids", "target_layer_ids")
"""Where a trainer's config names blocks, from 0, by their output."""
_CLASS: Final = r"^class {name}\((?P<bases>[^)]*)\)"


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is captured."""

    architecture: str
    layers: int

    def boundaries(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The boundaries that the flag captures with these ids; with none, SGLang's default ones."""
        if not ids:
            return (2, self.layers // 2, self.layers - 3)
        raw = self.architecture.startswith(RAW_UNLESS_ONE) and ids[0] != 1
        raw = raw or (self.architecture.startswith(RAW_IF_LAST) and max(ids) == self.layers)
        return tuple(sorted(i if raw else i + 1 for i in ids))

    def ids(self, boundaries: Sequence[int]) -> tuple[int, ...] | None:
        """The flag's ids that capture these boundaries; None when there are none."""
        wanted = tuple(sorted(boundaries))
        for step in (0, 1):
            ids = tuple(boundary - step for boundary in wanted)
            if min(ids, default=0) >= 0 and self.boundaries(ids) == wanted and max(ids, default=0) < self.layers:
                return ids
        return None


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a drafter's config asks for, by who would read it."""

    path: Path
    readings: dict[str, tuple[int, ...]]
    """Boundaries by the name of the convention."""


def read_target(model: Path) -> Target | None:
    """The target model by its config.json; None when that does not say enough."""
    try:
        whole = json.loads((model / "config.json").read_bytes())
        text = whole.get("text_config") or whole
        return Target(str(whole["architectures"][0]), int(text["num_hidden_layers"]))
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def read_drafter(path: Path, target: Target) -> Drafter:
    """A drafter's wishes out of its config.json, or of the directory that holds it.

    Raises:
        UsageError: the file cannot be read or names no layers.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"the drafter's config {file} cannot be read: {error}", "Give its directory.") from error
    for key in (*ENGINE_KEYS, *OUTPUT_KEYS):
        ids = _find(config, key)
        if ids is None:
            continue
        if key in OUTPUT_KEYS:
            return Drafter(file, {"0-based block outputs": tuple(sorted(i + 1 for i in ids))})
        readings = {"SGLang": target.boundaries(ids), "vLLM": tuple(sorted(ids))}
        same = len(set(readings.values())) == 1
        return Drafter(file, {"SGLang and vLLM": readings["SGLang"]} if same else readings)
    hint = (
        f"It names its layers under {', '.join((*ENGINE_KEYS, *OUTPUT_KEYS))}; one that names none takes the default."
    )
    raise UsageError(f"{file} does not say which layers the drafter was trained on", hint)


def drafter_problems(target: Target, ids: Sequence[int], drafter: Drafter) -> list[Problem]:
    """Why what is captured is not what the drafter wants, with the flags that would be right; empty when it matches."""
    captured = target.boundaries(ids)
    if captured in drafter.readings.values():
        return []
    wants = ", ".join(f"{_listed(wanted)} as read by {who}" for who, wanted in drafter.readings.items())
    text = f"the launch captures boundaries {_listed(captured)}, the drafter {drafter.path} wants {wants}"
    ways = []
    for who, wanted in drafter.readings.items():
        right = target.ids(wanted)
        if right is not None:
            flag = f"capture.layers = [{', '.join(map(str, right))}]"
            ways.append(flag if len(drafter.readings) == 1 else f"{flag} for {who}")
    hint = f"Set {' or '.join(ways)} ({LAYERS_FLAG})." if ways else f"No {LAYERS_FLAG} captures these boundaries."
    return [Problem("capture-drafter", text, hint)]


def drafter_match(target: Target, ids: Sequence[int], drafter: Drafter) -> str:
    """A line that says in whose reading the drafter wants what is captured."""
    captured = target.boundaries(ids)
    who = [name for name, wanted in drafter.readings.items() if wanted == captured]
    others = [f"{name} would read {_listed(b)}" for name, b in drafter.readings.items() if b != captured]
    text = f"boundaries {_listed(captured)} are what the drafter {drafter.path} wants, as read by {' and '.join(who)}"
    return f"{text}; {', '.join(others)}" if others else text


def layer_problems(target: Target, ids: Sequence[int]) -> list[Problem]:
    """Layer ids that the model cannot capture."""
    beyond = [i for i in target.boundaries(ids) if not 0 <= i < target.layers]
    if not beyond:
        return []
    why = f"the model has {target.layers} blocks, and a boundary is read at the input of one"
    text = f"boundaries {_listed(beyond)} cannot be captured: {why}"
    hint = f"Set capture.layers below {target.layers}; the state after the last block is captured in any case."
    return [Problem("capture-layers", text, hint)]


def support_problems(target: Target, sglang: Path) -> list[Problem]:
    """Whether the installed SGLang can capture this model class, by its source; empty when it can or is not known."""
    sources = {path: path.read_text("utf-8", "replace") for path in sorted((sglang / "srt" / "models").glob("*.py"))}
    supported = _supported(target.architecture, sources, 4)
    if supported is not False:
        return []
    text = f"the installed SGLang cannot capture {target.architecture}: it has no {METHOD}"
    return [Problem("capture-model", text, "Set enabled = false in [capture], or serve another model.")]


def _supported(name: str, sources: Mapping[Path, str], depth: int) -> bool | None:
    """Whether a class has the method, in its own file or in a base's; None when it is not found."""
    pattern = re.compile(_CLASS.format(name=re.escape(name)), re.MULTILINE)
    for text in sources.values():
        match = pattern.search(text)
        if match is None:
            continue
        if METHOD in text:
            return True
        bases = [base.strip().rpartition(".")[2] for base in match["bases"].split(",") if base.strip()]
        known = [_supported(base, sources, depth - 1) for base in bases if depth and "=" not in base]
        return any(known)
    return None


def _find(config: Any, key: str) -> list[int] | None:
    """The list of numbers under a key, at any level of a config."""
    if not isinstance(config, Mapping):
        return None
    ids = config.get(key)
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return ids
    return next((found for value in config.values() if (found := _find(value, key)) is not None), None)


def _listed(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
