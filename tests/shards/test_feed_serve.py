"""A feed that a console asked for: a real command in a process of its own, followed by what it prints."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kimi_agent.errors import UsageError
from kimi_agent.feed import serve
from kimi_agent.feed.serve import Feeds
from kimi_agent.paths import Home
from kimi_agent.wire.rpc import READ_ONLY

from .test_inspector import began


@pytest.fixture
async def feeds(tmp_path: Path) -> AsyncIterator[Feeds]:
    made = Feeds(Home(tmp_path / "home"))
    yield made
    await made.close()


async def ended(feeds: Feeds) -> dict[str, object]:
    """How a feed stands once its process is gone."""
    while (answer := await feeds.status())["state"] != "done":
        await asyncio.wait([feeds._following] if feeds._following else [], timeout=1)
    return answer


async def test_what_cannot_be_fed_is_refused_in_words(feeds: Feeds, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "hello"}\n')
    for dataset, dump, words in (
        (str(tmp_path / "no.jsonl"), "d1", "there is no file"), ("data.jsonl", "d1", "there is no file"),
        (str(data), "a/b", "is no name for a dump"), (str(data), "-x", "is no name for a dump"),
        (str(data), "", "is no name for a dump"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            await feeds.start(dataset, dump)
    with pytest.raises(UsageError, match=r"there is no file 'chat\.jinja' here"):
        await feeds.start(str(data), "d1", chat_template="chat.jinja")
    with pytest.raises(UsageError, match="no feed goes on"):
        await feeds.stop()
    assert await feeds.status() == {"state": "none"}
    assert {"feed"} == READ_ONLY & set(feeds.methods())


async def test_the_command_s_own_words_come_to_the_screen(feeds: Feeds, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "hello"}\n')
    answer = await feeds.start(str(data), "d1")
    assert (answer["state"], answer["dump"]) == ("reading", "d1")
    with pytest.raises(UsageError, match="is being fed"):
        await feeds.start(str(data), "d2")
    over = await ended(feeds)
    assert "no agent runs for" in str(over["error"])
    assert (await feeds.start(str(data), "d2"))["state"] == "reading"  # another one may begin now


async def test_a_feed_is_stopped_and_ends_with_the_agent(
    feeds: Feeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PATIENCE", 0.5)
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "hello"}\n')
    path = Home(tmp_path / "home").socket
    path.parent.mkdir(parents=True, mode=0o700)
    silent = socket.socket(socket.AF_UNIX)  # an agent that does not answer: the feed waits for it
    silent.bind(str(path))
    silent.listen()
    template = tmp_path / "t.jinja"
    template.touch()
    await feeds.start(str(data), "d1", max_new_tokens=9, chat_template=str(template))
    (process,) = await asyncio.to_thread(began, 1, str(data))
    assert process.cmdline()[-4:] == ["--max-new-tokens", "9", "--chat-template", str(template)]
    process.suspend()  # it cannot follow a signal, as one that waits for a disk cannot
    assert (await feeds.stop())["state"] == "stopping"
    assert os.getsid(process.pid) == process.pid
    await feeds.close()
    await asyncio.to_thread(process.wait)
    assert (await feeds.status())["state"] == "done"
    silent.close()
    shutil.rmtree(path.parent)
