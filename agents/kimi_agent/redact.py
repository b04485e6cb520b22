"""What must not leave the host with a bug report is taken out of text: secrets, names, addresses, prompts.

A `Redactor` is pure: it knows what it was told and what it has seen, reads nothing and asks no one. The same name gets
the same stand-in (`host-1`, `user-1`, `addr-1`) in everything that one `Redactor` is given. Lines are redacted one by
one, so that a text gives the same result however it is cut into pieces.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from kimi_agent.redact_patterns import (
    CUT,
    EMAIL,
    FLAG,
    HEADER,
    HOME,
    INNER_HOST,
    IPV4,
    IPV6,
    LONG,
    LONG_WORD,
    MAC,
    NAMED,
    PEM_BEGIN,
    PEM_END,
    PROMPT,
    REQUEST,
    SHAPES,
    URL_HOST,
    URL_USER,
    Guarded,
    harmless,
    is_secret_name,
    looks_random,
    may_name_secrets,
    spellings,
)

LONGEST: Final = 1 << 20
"""Characters of a line that are looked at; the rest of a longer one is dropped."""
SHORTEST_SECRET: Final = 4
"""A known secret of fewer characters is only removed where its name stands beside it."""
GENERIC: Final = frozenset({
    "root", "user", "users", "nobody", "daemon", "admin", "ubuntu", "debian", "centos", "ec2-user", "localhost",
    "localhost.localdomain", "ip6-localhost", "ip6-loopback", "local", "home",
})  # fmt: skip
"""Names that name nobody."""
PUBLIC: Final = ("huggingface.co", "github.com", "pytorch.org", "pypi.org", "sglang.ai", "python.org", "nvidia.com",
          "readthedocs.io")  # fmt: skip
SHORTEST_LONG_ADDRESS: Final = len("1:1:1:1:1:1:1:1")
MAC_MARKS, IPV6_MARKS, IPV4_MARKS = 5, 6, 3
"""How many `:` or `-`, `:` and `.` an address has at least, an IPv6 one without `::`."""
PROMPT_KEYS: Final = frozenset({"prompt", "messages", "input_ids", "output_ids", "input_text", "output_text"})


class Redactor:
    """Takes secrets, names, addresses and prompts out of any number of texts, consistently, and counts them."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        homes: Iterable[str] = (),
        secrets: Iterable[str] = (),
    ) -> None:
        """`hosts`, `users`, `homes` (paths) and `secrets` (values) are known to be private wherever they stand."""
        self._counts: Counter[str] = Counter()
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._hosts = _names(hosts)
        self._users = _names(users)
        self._homes = sorted({home.rstrip("/") for home in homes if len(home.rstrip("/")) > 1}, key=len, reverse=True)
        known = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in spellings(secret)}
        self._secrets = _any_of(known, "", "")
        self._name = _any_of({*self._hosts, *self._users}, r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])", any_case=True)
        self._home = _any_of(self._homes, r"(?<![\w.])", r"(?!\w)")

    def text(self, text: str) -> str:
        """The text without what is private; the number of lines stays, but for the body of a private key."""
        stream = self.stream()
        return stream.feed(text) + stream.end()

    def stream(self) -> "RedactedStream":
        """A redaction of one text that comes in pieces."""
        return RedactedStream(self)

    def data(self, value: Any) -> Any:
        """A JSON-like value without what is private: strings as by `text`, secrets also by the name they stand under.

        Numbers stay, so that pids, ports and sizes keep their meaning.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._entry(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._items(list(value))
        return value

    def report(self) -> dict[str, int]:
        """How many of each kind were replaced so far: `secret`, `key`, `host`, `user`, `home`, `address`, …"""
        return dict(sorted(self._counts.items()))

    def line(self, line: str) -> str:
        """One line, without its end."""
        line = self._prompts(line)
        line = self._credentials(line)
        line = self._home.sub(lambda match: self._stand_in("home", match[0]), line)
        line = HOME.sub(lambda match: self._stand_in("home", match[0]), line)
        line = EMAIL.sub(lambda match: self._stand_in("email", match[0].lower()), line)
        line = self._addresses(line)
        return self._names_in(line)

    def count(self, kind: str) -> None:
        """Note one more that was replaced."""
        self._counts[kind] += 1

    def _entry(self, key: str, item: Any) -> Any:
        if key.lower() in PROMPT_KEYS and isinstance(item, str | list | dict):
            self.count("prompt")
            return "<prompt>"
        if isinstance(item, str) and is_secret_name(key) and not harmless(key, item):
            self.count("secret")
            return "<secret>"
        return self.data(item)

    def _items(self, items: list[Any]) -> list[Any]:
        """A list, which may be a command line: what follows `--api-key` is a secret."""
        found: list[Any] = []
        flag = ""
        for item in items:
            word = item if isinstance(item, str) else ""
            if flag and word and not word.startswith("-"):
                found.append(self._entry(flag, word))
            else:
                found.append(self.data(item))
            flag = word.lstrip("-") if word.startswith("-") and is_secret_name(word.lstrip("-")) else ""
        return found

    def _prompts(self, line: str) -> str:
        def taken(match: re.Match[str]) -> str:
            self.count("prompt")
            return f"{match[1]}<prompt>"

        return PROMPT.sub(taken, REQUEST.sub(taken, line))

    def _credentials(self, line: str) -> str:
        line = URL_USER.sub(lambda match: self._mark("credentials", f"{match[1]}<credentials>@"), line)
        line = self._secrets.sub(self._removed("secret", "<secret>"), line)
        if (cut := CUT.search(line)) is not None:
            line = line[: cut.start()].rpartition(" ")[0] + line[cut.start() :]
        if may_name_secrets(line):
            line = HEADER.sub(self._header, line)
            line = FLAG.sub(self._valued, line)
            line = NAMED.sub(self._valued, line)
        line = SHAPES.sub(self._removed("secret", "<secret>"), line)
        return LONG_WORD.sub(self._shaped, line) if max(map(len, line.split()), default=0) >= LONG else line

    def _header(self, match: re.Match[str]) -> str:
        if match["value"].startswith("<"):
            return match[0]
        return self._mark("secret", f"{match['head']}<secret>")

    def _valued(self, match: re.Match[str]) -> str:
        value = match["value"].strip("\"'\\")
        if not is_secret_name(match["name"]) or harmless(match["name"], value):
            return match[0]
        return self._mark("secret", match["head"] + match["value"].replace(value, "<secret>"))

    def _shaped(self, match: re.Match[str]) -> str:
        return self._mark("secret", "<secret>") if looks_random(match[0]) else match[0]

    def _addresses(self, line: str) -> str:
        words = line.split()
        long = [word for word in words if len(word) >= SHORTEST_LONG_ADDRESS]
        if any(word.count(":") >= MAC_MARKS or word.count("-") >= MAC_MARKS for word in long):
            line = MAC.sub(lambda match: self._stand_in("mac", match[0].lower().replace("-", ":")), line)
        if "::" in line or any(word.count(":") >= IPV6_MARKS for word in long):
            line = IPV6.sub(self._address, line)
        if line.count(".") >= IPV4_MARKS and any(word.count(".") >= IPV4_MARKS for word in words):
            line = IPV4.sub(self._address, line)
        return line

    def _address(self, match: re.Match[str]) -> str:
        text = match[0]
        if "." not in text and "::" not in text and text.count(":") < IPV6_MARKS:
            return text  # a time
        for found in (text, text.rpartition(":")[0]):
            try:
                address = ipaddress.ip_address(found.partition("%")[0])
            except ValueError:
                continue
            if address.is_loopback or address.is_unspecified:
                return text
            return self._stand_in("address", address.compressed) + text[len(found) :]
        return text

    def _names_in(self, line: str) -> str:
        line = self._name.sub(self._named, line)
        line = INNER_HOST.sub(lambda match: self._stand_in("host", match[0].lower()), line)
        return URL_HOST.sub(self._url_host, line)

    def _named(self, match: re.Match[str]) -> str:
        name = match[0].lower()
        return self._stand_in("host" if name in self._hosts else "user", name)

    def _url_host(self, match: re.Match[str]) -> str:
        host = match["host"].lower().rstrip(".")
        public = any(host == name or host.endswith(f".{name}") for name in PUBLIC)
        if public or host in GENERIC or _STAND_IN.fullmatch(host) or host.replace(".", "").isdecimal():
            return match[0]
        return f"{match['head']}{self._stand_in('host', host)}"

    def _removed(self, kind: str, words: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._mark(kind, words)

    def _mark(self, kind: str, words: str) -> str:
        self.count(kind)
        return words

    def _stand_in(self, kind: str, value: str) -> str:
        self.count(kind)
        known = self._stand_ins.get((kind, value))
        if known is None:
            number = sum(1 for other, _ in self._stand_ins if other == kind) + 1
            known = self._stand_ins[kind, value] = f"{_WORDS.get(kind, kind)}-{number}"
        return known


_WORDS: Final = {"address": "addr"}
_STAND_IN: Final = re.compile(r"(?:host|user|addr|home|email|mac)-\d+")


class RedactedStream:
    """One text in pieces: what comes out, joined, is what `Redactor.text` makes of the whole."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = ""
        self._in_key = False

    def feed(self, piece: str) -> str:
        """The redacted lines that this piece completes."""
        *lines, self._rest = (self._rest + piece).split("\n")
        # More than is looked at need not be kept; one character more shows that the line is too long.
        self._rest = self._rest[: LONGEST + 1]
        return "".join(self._take(line, "\n") for line in lines)

    def end(self) -> str:
        """The redacted rest: a last line without an end."""
        rest, self._rest = self._rest, ""
        return self._take(rest, "") if rest else ""

    def _take(self, line: str, end: str) -> str:
        if len(line) > LONGEST:
            # A word that is cut in two would no longer be known for what it is.
            line = line[:LONGEST].rpartition(" ")[0] + " <cut>"
        if self._in_key:
            _, found, after = PEM_END.split(line, maxsplit=1) if PEM_END.search(line) else ("", "", "")
            if not found:
                return ""
            self._in_key, line = False, after
        return self._redactor.line(self._without_keys(line)) + end

    def _without_keys(self, line: str) -> str:
        """The line with every private key in it taken out, also one that goes on in the next line."""
        while (begin := PEM_BEGIN.search(line)) is not None:
            self._redactor.count("key")
            finish = PEM_END.search(line, begin.end())
            if finish is None:
                self._in_key = True
                return f"{line[: begin.start()]}<key>"
            line = f"{line[: begin.start()]}<key>{line[finish.end() :]}"
        return line


def _names(names: Iterable[str]) -> frozenset[str]:
    lowered = {name.strip().lower().rstrip(".") for name in names}
    return frozenset(name for name in lowered if len(name) > 1 and name not in GENERIC and not name.isdecimal())


def _any_of(words: Iterable[str], before: str, after: str, *, any_case: bool = False) -> Guarded:
    """A pattern of any of these words, the longest first; one that matches nothing when there are none."""
    ordered = sorted(words, key=len, reverse=True)
    body = "|".join(map(re.escape, ordered)) if ordered else r"(?!)"
    pattern = re.compile(f"{before}(?:{body}){after}", re.IGNORECASE if any_case else 0)
    return Guarded(pattern, *ordered, any_case=any_case)
