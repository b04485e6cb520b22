"""Why an SSH connection was not made, in the operator's words: one sentence of what and where, one of what to do."""

import errno
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from kimi_agent.errors import KimiError, UnavailableError, UsageError
from kimi_agent.text import clean
from kimi_console.remote.config import HostConfig, config_files
from kimi_console.remote.hostkeys import HostKeys, fingerprint

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


@dataclass(slots=True)
class Witness(asyncssh.SSHClient):
    """What the server showed and offered during one login, for the message when it fails."""

    keys: HostKeys
    offers: list[str] = field(default_factory=list)
    """Login methods that the server offers beside keys."""
    connected: bool = False

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connected = True

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.keys.shown = key
        return False

    def password_auth_requested(self) -> None:
        self.offers.append("password")

    def kbdint_auth_requested(self) -> None:
        self.offers.append("keyboard-interactive")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt to log in to one host."""

    target: HostConfig
    config: Path | None
    witness: Witness
    via: asyncssh.SSHClientConnection | None
    connect_timeout: float
    login_timeout: float

    @property
    def ssh(self) -> str:
        """The ssh command that does the same."""
        return shlex.join(["ssh", *self.target.ssh_arguments])

    @property
    def where(self) -> str:
        """The host as typed, with the address it stands for."""
        target = self.target
        return target.alias if target.hostname == target.alias else f"{target.alias} ({target.address})"

    async def explain(self, error: Exception) -> KimiError:
        """The failure as an error for a person."""
        if self.witness.connected and await self._has_other_key(error):
            return self.witness.keys.refuse(self.target.alias, self.ssh, clean(str(error)))
        match error:
            case asyncssh.PermissionDenied():
                return await self._refused_login()
            case TimeoutError() | ConnectionError() | asyncssh.ConnectionLost() if self.witness.connected:
                return self._broken_login(error)
            case OSError() | asyncssh.ChannelOpenError():
                return self._unreachable(error)
            case ValueError():
                reason = f"the ssh settings for {self.target.alias} cannot be used: {error}"
                return UsageError(reason, f"Compare with {self.ssh}.")
        return UnavailableError(f"no SSH connection to {self.where}: {clean(str(error))}", f"Compare with {self.ssh}.")

    async def _has_other_key(self, error: Exception) -> bool:
        """Whether the login failed over the host key."""
        keys = self.witness.keys
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return True
        if keys.shown is None and keys.known and not isinstance(error, asyncssh.PermissionDenied):
            # Only the known keys' algorithms were asked for: a host with a key of another type just hangs up.
            with suppress(OSError, asyncssh.Error):
                keys.shown = await asyncssh.get_server_host_key(
                    self.target.alias, self.target.port, tunnel=self.via, config=config_files(self.config)
                )
        return keys.shown is not None and keys.shown not in keys.known

    def _broken_login(self, error: Exception) -> KimiError:
        timed_out = isinstance(error, TimeoutError) or "timeout" in str(error).lower()
        if timed_out:
            what = f"{self.where} did not finish the login within {self.login_timeout:.0f} s"
        else:
            what = f"{self.where} closed the connection during the login"
        return UnavailableError(what, f"Look whether {self.ssh} works.", slug="login_timeout")

    def _unreachable(self, error: Exception) -> KimiError:
        target = self.target
        through = f" through {target.jump}" if self.via is not None else ""
        place = f"{target.alias} at {target.address}{through}"
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, socket.gaierror):
            what = f"the name {target.hostname} cannot be resolved"
            return UnavailableError(what, "Check the spelling, HostName in the ssh config, and the name server.")
        if isinstance(error, asyncssh.ChannelOpenError):
            what = f"the jump host {target.jump} cannot reach {target.address}: {clean(error.reason)}"
            return UnavailableError(what, "Check the host's name and port as the jump host sees them.")
        if isinstance(error, TimeoutError):
            what = f"{place} does not answer (waited {self.connect_timeout:.0f} s)"
            return UnavailableError(what, "Check that the host is up and that no firewall is between.")
        if number == errno.ECONNREFUSED:
            return UnavailableError(f"{place} refuses connections", "Check that sshd runs there, and the port.")
        if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return UnavailableError(f"there is no route to {place}", "Check the network and the VPN.")
        return UnavailableError(f"cannot connect to {place}: {clean(str(error))}", f"Compare with {self.ssh}.")

    async def _refused_login(self) -> KimiError:
        """Why no key was accepted: which were tried, and which could not be used."""
        target = self.target
        keys = target.identities or tuple(
            path for name in DEFAULT_KEYS if (path := Path.home() / ".ssh" / name).is_file()
        )
        missing = [path for path in target.identities if not path.is_file()]
        locked = [path for path in keys if path not in missing and _needs_passphrase(path)]
        usable = [path for path in keys if path not in missing and path not in locked]
        from_agent = await _agent_keys()
        who = f"{target.user} on {target.alias}"
        if missing and not usable and not from_agent:
            what = f"the key file {missing[0]} that the ssh config names for {target.alias} does not exist"
            return UsageError(what, "Correct IdentityFile, or make the key with ssh-keygen.")
        if locked and not usable and not from_agent:
            what = f"the key {locked[0]} for {who} has a passphrase and no ssh-agent holds it"
            return UnavailableError(what, f"Run {shlex.join(['ssh-add', str(locked[0])])}, then connect again.")
        tried = ", ".join([*map(_described, usable), *(f"{name} of the ssh-agent" for name in from_agent)])
        offers = " and ".join(dict.fromkeys(self.witness.offers))
        also = f"; the server also offers {offers}, which this console does not use" if offers else ""
        return UnavailableError(
            f"{who} is refused: tried publickey with {tried or 'no key at all'}{also}",
            f"Add a key there with ssh-copy-id, or look with {self.ssh.replace('ssh', 'ssh -v', 1)}.",
            slug="login_refused",
        )


def _needs_passphrase(path: Path) -> bool:
    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyEncryptionError:
        return True
    except asyncssh.KeyImportError as error:
        return "assphrase" in str(error)
    except OSError:
        return False
    return False


def _described(path: Path) -> str:
    """A key file with its fingerprint when it can be read."""
    try:
        return f"{path} ({fingerprint(asyncssh.read_private_key(path))})"
    except (OSError, asyncssh.KeyImportError):
        return f"{path} (not readable as a key)"


async def _agent_keys() -> list[str]:
    """Comments of the keys that the ssh-agent holds; empty when there is no agent."""
    with suppress(OSError, asyncssh.Error, ValueError):
        async with asyncssh.connect_agent() as agent:
            return [clean(key.get_comment() or "a key") for key in await agent.get_keys()]
    return []
