"""The exit codes that a server's status means, for those without a screen."""

from typing import Final

from kimi_agent.errors import Exit
from kimi_agent.model.state import State

EXITS: Final = {"SLOW": Exit.SLOW, "HUNG": Exit.HUNG, "FAILED": Exit.FAILED}


def status_exit(state: State) -> int:
    """The exit code that a state's status word means."""
    return EXITS.get(state.run.status, Exit.OK) if state.run is not None else Exit.OK
