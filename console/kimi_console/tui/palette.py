"""The command palette: every action with its key; what does not apply says why."""

from collections.abc import Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from kimi_console.tui.actions import ACTIONS, Action
from kimi_console.tui.board import Board


class ActionProvider(Provider):
    """Offers the registry's actions of the board."""

    async def discover(self) -> Hits:
        """Everything, what applies first."""
        for action, help_text in self._offers():
            yield DiscoveryHit(Content(_name(action)), self._runner(action), _name(action), help_text)

    async def search(self, query: str) -> Hits:
        """What matches, by name or by help."""
        matcher = self.matcher(query)
        for action, help_text in self._offers():
            score = max(matcher.match(_name(action)), 0.7 * matcher.match(action.help))
            if score > 0:
                yield Hit(score, Content(_name(action)), self._runner(action), _name(action), help_text)

    def _offers(self) -> Iterator[tuple[Action, str]]:
        board = self.screen
        if not isinstance(board, Board):
            return
        reasons = [(action, action.why_not(board.session)) for action in ACTIONS if action.id != "palette"]
        for action, reason in sorted(reasons, key=lambda pair: bool(pair[1])):
            yield action, f"not now: {reason}" if reason else action.help

    def _runner(self, action: Action) -> "ActionRunner":
        return ActionRunner(self.screen, action)


class ActionRunner:
    """Runs an action on the board it was offered for."""

    def __init__(self, board: object, action: Action) -> None:
        self._board = board
        self._action = action

    def __call__(self) -> None:
        """Do it."""
        if isinstance(self._board, Board):
            self._board.action_run(self._action.id)


def _name(action: Action) -> str:
    return f"{action.shown:>3}  {action.label}"
