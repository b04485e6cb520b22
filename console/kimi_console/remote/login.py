"""One login: what the server shows and asks, what is answered, and within which time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from kimi_agent.text import clean
from kimi_console.remote.config import HostConfig
from kimi_console.remote.hostkeys import HostKeys
from kimi_console.source.questions import Question, Questions

TRIES = 3
"""How often one password or passphrase is asked for, as ssh does."""
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
MAX_WORDS = 1000
"""Characters shown of what a server says beside its question."""


@dataclass(slots=True)
class Deadline:
    """The time that is left for connecting and for the login; it stands still while the operator types."""

    login: float
    """Seconds for the login once connected."""
    timeout: asyncio.Timeout | None = None

    def connected(self) -> None:
        """The login's own time begins."""
        if self.timeout is not None and not self.timeout.expired():
            self.timeout.reschedule(asyncio.get_running_loop().time() + self.login)

    @asynccontextmanager
    async def standing_still(self) -> AsyncIterator[None]:
        """No time passes inside; afterwards the login has its whole time again."""
        if self.timeout is not None:
            self.timeout.reschedule(None)
        try:
            yield
        finally:
            self.connected()


@dataclass(slots=True)
class Witness(asyncssh.SSHClient):
    """What the server showed and offered during one login; it asks the operator what keys alone do not answer."""

    target: HostConfig
    keys: HostKeys
    questions: Questions
    deadline: Deadline
    offers: list[str] = field(default_factory=list)
    """Login methods that the server offers beside keys, as far as they came up."""
    tried: dict[str, int] = field(default_factory=dict)
    """How often each of them was answered."""
    connected: bool = False
    cancelled: bool = False
    """Whether the operator left a question."""
    locked: list[Path] | None = None
    """Key files with a passphrase that were not asked for yet; `None` before they were looked for."""
    opened: list[Path] = field(default_factory=list)
    """Key files whose passphrase was given."""

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connected = True
        self.deadline.connected()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.keys.shown = key
        return False

    async def public_key_auth_requested(self) -> Sequence[Any] | None:
        """Every key without a passphrase was refused: the next one that has one."""
        if self.locked is None:
            self.locked = await asyncio.to_thread(locked_keys, self.target)
            self.locked = [path for path in self.locked if not await _refused_from_agent(path)]
        while self.locked and self._may_ask():
            path = self.locked.pop(0)
            pairs = await self._open(path)
            if pairs:
                self.opened.append(path)
                return pairs
        return None

    async def _open(self, path: Path) -> Sequence[Any]:
        for again in (False, *(True,) * (TRIES - 1)):
            answer = await self._answer(f"passphrase of the key {path}", again=again, keep=True)
            if answer is None:
                break
            with suppress(asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
                return await asyncio.to_thread(self._load, path, answer)
        return ()

    def _load(self, path: Path, passphrase: str) -> Sequence[Any]:
        certificates = [str(each) for each in self.target.certificates if each.is_file()]
        pairs: Sequence[Any] = asyncssh.load_keypairs([str(path)], passphrase, certificates)
        return pairs

    async def password_auth_requested(self) -> str | None:
        """The password, up to three times."""
        count = self._another_try("password")
        return None if count is None else await self._answer(self._who("password"), again=count > 0, keep=True)

    def kbdint_auth_requested(self) -> str | None:
        """Whether the server may ask questions of its own, up to three times."""
        return None if self._another_try("keyboard-interactive") is None else ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """The answers to the server's questions."""
        answers = []
        said = clean(" ".join(filter(None, (name, instructions))), MAX_WORDS).strip()
        again = self.tried["keyboard-interactive"] > 1
        for text, echo in prompts:
            asked = clean(text, 200).strip().rstrip(":").strip() or "answer"
            password = not echo and "password" in asked.lower()
            prompt = self._who("password" if password else asked)
            answer = await self._answer(prompt, again=again, keep=password, secret=not echo, words=said)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    def _who(self, what: str) -> str:
        return f"{what} of {self.target.user} on {self.target.alias}"

    def _may_ask(self) -> bool:
        return self.questions.handler is not None and not self.cancelled

    def _another_try(self, method: str) -> int | None:
        """How often the method was tried before, when it may be tried now."""
        if method not in self.offers:
            self.offers.append(method)
        count = self.tried.get(method, 0)
        if not self._may_ask() or count >= TRIES:
            return None
        self.tried[method] = count + 1
        return count

    async def _answer(
        self, prompt: str, *, again: bool, keep: bool, secret: bool = True, words: str = ""
    ) -> str | None:
        question = Question(self.target.alias, prompt, secret, again, words)
        async with self.deadline.standing_still():
            answer = await self.questions.answer(question, keep=keep)
        self.cancelled = self.cancelled or answer is None
        return answer


def locked_keys(target: HostConfig) -> list[Path]:
    """The host's key files that need a passphrase."""
    return [path for path in key_files(target) if path.is_file() and needs_passphrase(path)]


def key_files(target: HostConfig) -> tuple[Path, ...]:
    """The key files that the config names, else those of ssh's defaults that exist."""
    return target.identities or tuple(path for name in DEFAULT_KEYS if (path := Path.home() / ".ssh" / name).is_file())


def needs_passphrase(path: Path) -> bool:
    """Whether a private key's file is encrypted."""
    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyEncryptionError:
        return True
    except asyncssh.KeyImportError as error:
        return "assphrase" in str(error)
    except OSError:
        return False
    return False


async def _refused_from_agent(path: Path) -> bool:
    """Whether the ssh-agent holds this key, which was refused then."""
    with suppress(OSError, asyncssh.Error, ValueError):
        public = asyncssh.read_public_key(f"{path}.pub").public_data
        return any(key.public_data == public for key in await agent_keys())
    return False


async def agent_keys() -> Sequence[Any]:
    """The keys that the ssh-agent holds; empty when there is no agent."""
    with suppress(OSError, asyncssh.Error, ValueError):
        async with asyncssh.connect_agent() as agent:
            found: Sequence[Any] = await agent.get_keys()
            return found
    return ()
