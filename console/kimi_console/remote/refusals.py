"""Why an SSH connection was not made, in the operator's words: one sentence of what and where, one of what to do."""

import asyncio
import errno
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from kimi_agent.errors import KimiError, UnavailableError, UsageError
from kimi_agent.text import clean
from kimi_console.remote.config import HostConfig, config_files
from kimi_console.remote.hostkeys import fingerprint
from kimi_console.remote.login import Witness, agent_keys, key_files, needs_passphrase
from kimi_console.source.questions import LoginCancelled

TOO_MANY = "too many authentication failures"


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
        if self.witness.cancelled:
            who = f"{self.target.user} on {self.target.alias}"
            return LoginCancelled(f"the login of {who} was left unanswered", "Press r, or connect again, to be asked.")
        if isinstance(error, asyncssh.PermissionDenied):
            return await self._refused_login()
        if isinstance(error, asyncssh.DisconnectError) and TOO_MANY in str(error).lower():
            return await self._refused_login(too_many=True)
        return self._not_connected(error)

    def _not_connected(self, error: Exception) -> KimiError:
        match error:
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
                async with asyncio.timeout(self.login_timeout):
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

    async def _refused_login(self, *, too_many: bool = False) -> KimiError:
        """Why nothing was accepted: which keys and methods were tried, and which could not be used."""
        target, witness = self.target, self.witness
        keys = key_files(target)
        missing = [path for path in target.identities if not path.is_file()]
        locked = [path for path in keys if path not in (*missing, *witness.opened) and needs_passphrase(path)]
        usable = [path for path in keys if path not in missing and path not in locked]
        from_agent = [clean(key.get_comment() or "a key") for key in await agent_keys()]
        who = f"{target.user} on {target.alias}"
        if not (usable or from_agent or witness.tried):
            if missing:
                what = f"the key file {missing[0]} that the ssh config names for {target.alias} does not exist"
                return UsageError(what, "Correct IdentityFile, or make the key with ssh-keygen.")
            if locked:
                what = f"the key {locked[0]} for {who} has a passphrase and no ssh-agent holds it"
                return UnavailableError(what, f"Run {shlex.join(['ssh-add', str(locked[0])])}, then connect again.")
        tried = ", ".join([*map(_described, usable), *(f"{name} of the ssh-agent" for name in from_agent)])
        methods = "".join(f", {method} ({_times(count)})" for method, count in witness.tried.items())
        offers = " and ".join(method for method in witness.offers if method not in witness.tried)
        also = f"; the server also offers {offers}, which needs a terminal to type in" if offers else ""
        what = f"{who} is refused{' after too many tries' if too_many else ''}: tried publickey with "
        return UnavailableError(
            f"{what}{tried or 'no key at all'}{methods}{also}", self._way_in(too_many), slug="login_refused"
        )

    def _way_in(self, too_many: bool) -> str:
        if too_many:
            return "Name the one key with IdentityFile and set IdentitiesOnly yes for this host in the ssh config."
        return f"Add a key there with ssh-copy-id, or look with {self.ssh.replace('ssh', 'ssh -v', 1)}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _described(path: Path) -> str:
    """A key file with its fingerprint when it can be read."""
    try:
        return f"{path} ({fingerprint(asyncssh.read_private_key(path))})"
    except asyncssh.KeyEncryptionError:
        return f"{path} (opened with its passphrase)"
    except (OSError, asyncssh.KeyImportError):
        return f"{path} (not readable as a key)"
