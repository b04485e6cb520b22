"""The start's panes: what is left of it, what could not be placed, and the trouble that is over."""

from dataclasses import replace

import pytest

from kimi_agent.model import events as ev
from kimi_agent.model.reduce import fold
from kimi_console.source.base import Link
from kimi_console.tui.cells import Line
from kimi_console.tui.panes.launch import LAUNCH
from kimi_console.tui.panes.why import WHY
from kimi_console.tui.view import View

from . import scenes


def text_of(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def launch_pane(journal: scenes.Journal, at: float, *, wide: int = 70) -> str:
    view = View("gpu-07", fold(journal.events), Link("live"), scenes.T0 + at)
    drawn = LAUNCH.draw(view, wide, 12)
    return text_of([drawn.title, *drawn.lines])


@pytest.mark.parametrize(("at", "words"), [(30, "about 5:14 to go"), (100, "about 3:53 to go"), (300, "2:09 late")])
def test_a_start_says_how_long_it_will_take_or_how_late_it_is(at: float, words: str) -> None:
    assert words in launch_pane(scenes.launched(), at)


def test_without_a_good_start_nothing_is_promised() -> None:
    journal = scenes.launched()
    journal.events = [event for event in journal.events if not isinstance(event.body, ev.BaselineKnown)]
    shown = launch_pane(journal, 30)
    assert "to go" not in shown
    assert "late" not in shown


def test_several_good_starts_are_named_as_such() -> None:
    journal = scenes.launched()
    journal.events = [
        replace(event, body=replace(event.body, starts=5)) if isinstance(event.body, ev.BaselineKnown) else event
        for event in journal.events
    ]
    assert "of 5 good" in launch_pane(journal, 30)


def test_lines_that_matched_no_phase_are_counted_where_the_phases_are() -> None:
    journal = scenes.launched().add(40, ev.LogUnmatched(scenes.RUN, 2, 17.0, "Weights are being read"))
    shown = launch_pane(journal, 40)
    assert "2 lines, 0:17 matched no phase" in shown
    assert "not known: Weights are being read" in shown


def test_trouble_that_is_over_stays_readable() -> None:
    journal = scenes.launched()
    stopped = ev.Verdict("straggler", "TP1 is stopped", "TP1", 0.98, ("proc: TP1 state T",))
    journal.add(60, ev.VerdictChanged(scenes.RUN, stopped))
    journal.add(60, ev.StatusChanged(scenes.RUN, "HUNG", "TP1 is stopped"))
    journal.add(95, ev.VerdictChanged(scenes.RUN, ev.Verdict("none", "")))
    journal.add(95, ev.StatusChanged(scenes.RUN, "STARTING", "load weights: 0 of 8 ranks past it"))
    view = View("gpu-07", fold(journal.events), Link("live"), scenes.T0 + 100)
    shown = text_of(WHY.draw(view, 60, 14).lines)
    for words in ("STARTING → HUNG: TP1 is stopped", "cleared: TP1 is stopped", "HUNG → STARTING", "E shows all"):
        assert words in shown
    assert "no problem seen" in shown
