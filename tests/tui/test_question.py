"""What a login asks, as a dialog over the board."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App

from kimi_console.source.questions import Question, Questions
from kimi_console.tui.screens.question import QuestionDialog, ask_on_screen

from . import scenes
from .test_board import app_of, settle, until

Seen = Callable[[App[Any]], str]
PASSWORD = Question("gpu-07", "password of root on gpu-07", again=True, words="Authorised users only")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_secret_is_typed_unseen_and_answers(seen: Seen, size: tuple[int, int]) -> None:
    app = app_of(scenes.slow())
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        questions = Questions(lambda question: ask_on_screen(app, question))
        answering = asyncio.create_task(questions.answer(PASSWORD))
        await until(pilot, lambda: isinstance(app.screen, QuestionDialog))
        await pilot.press(*"sesame")
        await pilot.pause()
        text = seen(app)
        assert "sesame" not in text
        for words in ("gpu-07", "Authorised users only", "that was refused", PASSWORD.prompt, "\u2022" * 6, "Esc"):
            assert words in text
        await pilot.press("enter")
        assert await answering == "sesame"
        assert app.screen is app.board


async def test_questions_come_one_after_the_other_and_may_be_left(seen: Seen) -> None:
    app = app_of(scenes.slow())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        questions = Questions(lambda question: ask_on_screen(app, question))
        code = Question("gpu-08", "code of me on gpu-08", secret=False)
        first = asyncio.create_task(questions.answer(PASSWORD))
        second = asyncio.create_task(questions.answer(code))
        await until(pilot, lambda: isinstance(app.screen, QuestionDialog))
        await pilot.press("escape")
        assert await first is None
        await until(pilot, lambda: isinstance(app.screen, QuestionDialog))
        await pilot.press(*"123")
        await pilot.pause()
        assert "123" in seen(app)
        await pilot.press("enter")
        assert await second == "123"
