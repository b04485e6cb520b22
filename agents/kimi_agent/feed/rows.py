"""Rows of a dataset, as JSON values: conversations, prompts or token ids. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kimi_agent.text import clean

CONVERSATIONS: Final = ("messages", "conversations")
PROMPTS: Final = ("prompt", "text")
ANSWERS: Final = ("completion", "response", "answer")
ROLES: Final = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
"""ShareGPT's words for who speaks."""
KNOWN_ROLES: Final = ("system", "user", "assistant", "tool", "developer")


class RowError(ValueError):
    """A row cannot be fed: the kind of fault, which is counted, and what it is."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of a conversation, for the chat template."""

    messages: tuple[Mapping[str, Any], ...]
    """Each with `role` and `content`, and what else the template may want."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text that goes to the tokenizer as it is."""

    text: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids that need no tokenizer."""

    ids: tuple[int, ...]
    mask: tuple[int, ...] | None
    """0 or 1 for each, where the row says so."""


Row = Conversation | Prompt | Tokens


def parse_row(value: Any) -> Row:
    """What a row asks for.

    Raises:
        RowError: `empty` when it has nothing in it, `malformed` when it is none of the known shapes.
    """
    if not isinstance(value, Mapping):
        raise RowError("malformed", f"a row is a JSON object, this is {type(value).__name__}")
    value = {key: held for key, held in value.items() if held is not None}  # a column that others of its table have
    if "input_ids" in value:
        return _tokens(value)
    for key in CONVERSATIONS:
        if key in value:
            return Conversation(_messages(value[key], key))
    for key in PROMPTS:
        if key in value:
            return _prompt(value, key)
    names = ", ".join(("input_ids", *CONVERSATIONS, *PROMPTS))
    raise RowError("malformed", f"it has none of {names}")


def _tokens(value: Mapping[str, Any]) -> Tokens:
    ids, mask = value["input_ids"], value.get("loss_mask")
    if not isinstance(ids, Sequence) or not all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
        raise RowError("malformed", "input_ids is not a list of token ids")
    if not ids:
        raise RowError("empty", "input_ids is empty")
    if mask is not None and (not isinstance(mask, Sequence) or len(mask) != len(ids) or not set(mask) <= {0, 1}):
        raise RowError("malformed", f"loss_mask is not a list of {len(ids)} zeros and ones")
    return Tokens(tuple(ids), None if mask is None else tuple(mask))


def _prompt(value: Mapping[str, Any], key: str) -> Prompt:
    text = value[key]
    answer = next((value[name] for name in ANSWERS if value.get(name) is not None), None)
    if not isinstance(text, str) or not isinstance(answer, str | None):
        raise RowError("malformed", f"{key} or its answer is not text")
    if not text:
        raise RowError("empty", f"{key} is empty")
    return Prompt(text, answer or None)


def _messages(turns: Any, key: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise RowError("malformed", f"{key} is not a list of turns")
    if not turns:
        raise RowError("empty", f"{key} has no turns")
    found = tuple(_message(turn, place) for place, turn in enumerate(turns))
    if all(message["role"] in ("assistant", "system") for message in found):
        raise RowError("malformed", f"{key} has no turn to answer")
    return found


def _message(turn: Any, place: int) -> Mapping[str, Any]:
    if not isinstance(turn, Mapping):
        raise RowError("malformed", f"turn {place} is not an object")
    said = turn.get("role", turn.get("from"))
    role = ROLES.get(said, said) if isinstance(said, str) else None
    if role not in KNOWN_ROLES:
        raise RowError("malformed", f"turn {place} is said by {clean(repr(said), 40)}")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content, place)
    if not isinstance(content, str):
        raise RowError("malformed", f"turn {place} has no text")
    if not content and not (role == "assistant" and turn.get("tool_calls")):
        raise RowError("empty", f"turn {place} is empty")
    return {**{name: held for name, held in turn.items() if name not in ("from", "value")}, "role": role,
            "content": content}  # fmt: skip


def _joined(parts: Sequence[Any], place: int) -> str:
    """The text of a turn that comes in parts, of text only: there is nothing to be captured of an image."""
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RowError("malformed", f"turn {place} is not of text alone")
    return "".join(text for text in texts if text)
