r"""What private things look like in a log. No pattern crosses a line's end, and none has nested repeats."""

import json
import re
import shlex
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import quote


class Guarded:
    """A pattern, and words of which every match holds one: to look for these costs a hundredth of the pattern."""

    def __init__(self, pattern: re.Pattern[str], *words: str, any_case: bool = False) -> None:
        """With `any_case` the words may be written in capitals, too."""
        self._pattern = pattern
        self._words = tuple(word.lower() for word in words) if any_case else words
        self._any_case = any_case
        self._sure = not any_case or all(map(str.isascii, words))

    def may_match(self, line: str) -> bool:
        """Whether the pattern may match somewhere in a line; where it does, so it may."""
        if self._any_case:
            if not (self._sure and line.isascii()):
                return True  # letters beyond ASCII have more than one way to be the same in another case
            line = line.lower()
        for word in self._words:  # noqa: SIM110 - a generator costs three times as much
            if word in line:
                return True
        return False

    def sub(self, replace: Callable[[re.Match[str]], str], line: str) -> str:
        """The line with every match replaced."""
        return self._pattern.sub(replace, line) if self.may_match(line) else line


_VALUE = r"""(?P<value>\\"[^"\\]*\\"|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;)}\]"'\\]+)"""

_HINTS = ("key", "secret", "pass", "pwd", "credential", "auth", "cookie", "signature", "_pat", "_sas")
"""A line without any of these, and without `token`, has no named secret."""
_COUNT = r"[ \t]{0,8}[\d.]+[%a-z]{0,3}(?:[\s,;)}\]\"'\\]|$)"
_TOKEN_NAMED = re.compile(rf"token(?:\\?[\"'])?[ \t]{{0,8}}(?:=>|[=:])(?!{_COUNT})|security-token")
"""In small letters: `token` as the end of a name whose value is no count of tokens."""
NAMED: Final = re.compile(
    rf"(?P<head>(?<![\w.-])(?P<name>[\w.-]{{1,128}})(?:\\?[\"'])?[ \t]{{0,8}}(?:=>|[=:])[ \t]{{0,8}}b?){_VALUE}"
)
"""`NAME=value`, `name: value`, `"name": "value"`."""
FLAG: Final = Guarded(re.compile(
    rf"(?P<head>(?<![\w-])--(?P<name>[\w-]{{1,64}})(?:\\?[\"'])?(?:[ \t]{{0,8}}[=,][ \t]{{0,8}}|[ \t]{{1,8}})(?!-))"
    rf"{_VALUE}"
), "--")  # fmt: skip
"""`--name value`, also in a list of arguments."""
HEADER: Final = Guarded(re.compile(
    r"(?P<head>\b(?:(?:proxy-)?authorization|(?:x-)?(?:goog-)?api-key|(?:set-)?cookie|x-auth-token|x-amz-security-token)"
    r"(?:\\?[\"'])?[ \t]{0,8}(?:[:,]|(?P<is>=))[ \t]{0,8}b?(?:\\?[\"'])?)"
    r"(?P<value>(?(is)(?:(?!(?<![;,])[ \t][\w.-]{1,64}[=:])[^\"'\n\\])+|[^\"'\n\\]+)"
    r"(?:(?<=[=:])[\"'][^\"'\n]*[\"']?)?)",
    re.IGNORECASE,
), "authorization", "api-key", "cookie", "auth-token", "security-token", any_case=True)  # fmt: skip
"""An HTTP header up to its quote or the line's end; written with `=`, up to the next name. A quoted value whose name it
took goes with it."""
URL_USER: Final = Guarded(re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{1,24}://)(?!<)[^\s/@\"'<>]{1,512}@"), "://")
URL_HOST: Final = Guarded(re.compile(
    r"(?P<head>://(?:<credentials>@)?)(?P<host>[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.?)(?![\w.-])"
), "://")  # fmt: skip
INNER_HOST: Final = Guarded(re.compile(
    r"(?<![\w.-])(?:ip(?:-\d{1,3}){4}(?:\.[a-z0-9-]{1,63}){0,6}"
    r"|(?:[a-z0-9-]{1,63}\.){1,6}(?:internal|lan|corp|intranet|localdomain)"
    r"|(?:[a-z0-9-]{1,63}\.){2,6}local)(?![\w-])",
    re.IGNORECASE,
), "ip-", ".internal", ".lan", ".corp", ".intranet", ".local", any_case=True)  # fmt: skip
"""Names that only exist inside an organisation."""
EMAIL: Final = Guarded(
    re.compile(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\b"), "@"
)
"""`name@place`, an address of mail or of a shell."""
HOME: Final = Guarded(
    re.compile(r"(?<![\w.])(?:/[\w.-]{1,64}){0,4}/(?:home|Users)/(?!<)[^\s/:'\"\\,;()\[\]<>|]{1,64}"),
    "/home/", "/Users/",
)  # fmt: skip
MAC: Final = re.compile(
    r"(?<![0-9A-Fa-f:-])[0-9A-Fa-f]{2}(?P<by>[:-])(?:[0-9A-Fa-f]{2}(?P=by)){4,18}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:-])"
)
_V4 = r"(?:\d{1,3}\.){3}\d{1,3}"
IPV4: Final = re.compile(rf"(?<![\d.]){_V4}(?!\d|\.\d)")
IPV6: Final = re.compile(
    rf"(?<![\w:.])[0-9A-Fa-f]{{0,4}}(?::[0-9A-Fa-f]{{0,4}}){{1,8}}:(?:{_V4}|[0-9A-Fa-f]{{1,5}})?(?:%\w{{1,16}})?(?![\w:])"
)
"""May have a port or a colon at its end, and may be a time: what it is, only parsing tells."""
PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
PEM_END: Final = re.compile(r"(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)")
CUT: Final = re.compile(r"… \[\d+ characters cut\]")
"""The mark of a cut line; the word before it may be half a secret."""
REQUEST: Final = Guarded(re.compile(
    r"(\b(?:Receive|Finish)(?: OpenAI)?: |\b(?:Batch)?(?:Tokenized)?(?:GenerateReqInput|EmbeddingReqInput"
    r"|ChatCompletionRequest|CompletionRequest|ResponsesRequest)\()(?!<prompt>).+"
), "Receive", "Finish", "ReqInput(", "Request(")  # fmt: skip
"""A request as SGLang logs it: all that follows is what a person wrote, or an answer to it."""
PROMPT: Final = Guarded(re.compile(
    r"(?<![\w-])((?:text|prompts?|messages|content|(?:origin_)?(?:input|output)_(?:ids|text)|input_embeds"
    r"|(?:user|system)_prompt)(?:\\?[\"'])?[ \t]{0,4}[:=][ \t]{0,4})(?=\\?[\"'\[{(]|tensor).+"
), "text", "prompt", "messages", "content", "put_ids", "input_embeds")  # fmt: skip
"""A prompt under its name; it may hold any quote, so the rest of the line goes with it."""
SHAPES: Final = Guarded(re.compile(
    "|".join((
        r"\b(?:sk|pk|rk)-(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{12,}",
        r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
        r"\b(?:gh[opusr]|github_pat|glpat|gldt|npm|dop_v1|shpat|xox[abprs]|xapp|nvapi|dckr_pat|gsk|pypi)[-_]"
        r"(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{12,}",
        r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}",
        r"\bAIza[A-Za-z0-9_-]{20,}",
        r"\bya29\.[A-Za-z0-9_.-]{16,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
        r"(?<=[Bb]earer )(?!<)[^\s\"'\\]{6,}",
    ))
), "sk-", "pk-", "rk-", "hf_", "api_org_", *(f"gh{kind}{end}" for kind in "opusr" for end in "-_"), "github_pat",
    "glpat", "gldt", "npm", "dop_v1", "shpat", "xox", "xapp", "nvapi", "dckr_pat", "gsk", "pypi",
    "AKIA", "ASIA", "AROA", "AIDA", "AIza", "ya29.", "eyJ", "earer ",
)  # fmt: skip
"""Keys that their own beginning gives away."""
LONG: Final = 32
LONG_WORD: Final = re.compile(rf"(?<![A-Za-z0-9+_=-])[A-Za-z0-9+][A-Za-z0-9+_=-]{{{LONG - 1},}}(?![A-Za-z0-9+_=-])")

_SECRET_NAME = re.compile(
    r"(?:token|secret|passw(?:or)?d|passwd|passphrase|credentials?|apikey|authorization|cookie|signature"
    r"|secret[_.-].*|(?:^|.*[_.-])auth"
    r"|(?:api|access|private|secret|ssh|license|signing|encryption|master|admin|auth|account|service|session)[_.-]?key(?:[_.-]?id)?)$"
    r"|^[A-Z0-9_]*_(?:KEY|PAT|PASS|PWD|SAS)$"
)
_NOTHING = re.compile(r"(?:none|null|nil|true|false|\*+|<secret>|)$", re.IGNORECASE)
_TOKEN = re.compile(r"[\d.]+[%a-zA-Z]{0,3}$|<[^<>]*>$|\[[A-Z_]+\]?$")


def may_name_secrets(line: str) -> bool:
    """Whether `HEADER`, `FLAG` or `NAMED` may find a secret in a line; where they do, so it may."""
    if not line.isascii():
        return True
    small = line.lower()
    if any(hint in small for hint in _HINTS):
        return True
    return "token" in small and ("TOKEN" in line or "--" in line or _TOKEN_NAMED.search(small) is not None)


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret: `HF_TOKEN`, `api_key`, `clientSecret`; not `max_tokens`."""
    return _SECRET_NAME.search(name) is not None or _SECRET_NAME.search(name.lower()) is not None


def harmless(name: str, value: str) -> bool:
    """Whether what stands under a secret's name is none: nothing, a truth value, a count of tokens, `<s>`."""
    if _NOTHING.match(value):
        return True
    counts = name.lower().endswith("token") and name.upper() != name
    return counts and _TOKEN.match(value) is not None


def looks_random(word: str) -> bool:
    """Whether a long word is a key rather than a name, by its mix of digits and letters."""
    if word.startswith("_Z") or word.count("_") + word.count("-") > 4:
        return False  # a mangled C++ name, or words put together
    return all(sum(map(kind, word)) >= 3 for kind in (str.isdigit, str.isupper, str.islower))


def spellings(secret: str) -> set[str]:
    """A secret as it may stand in JSON, a shell command, a URL or a Python value."""
    return {secret, json.dumps(secret)[1:-1], shlex.quote(secret), quote(secret, safe=""), repr(secret)[1:-1]}
