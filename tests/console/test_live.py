"""The live source over a real socket: nothing lost, nothing doubled, nothing hidden."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.errors import Exit, KimiError, UnavailableError
from kimi_agent.model.events import Event, Gap, Note, Unknown
from kimi_console.source.base import Link
from kimi_console.source.live import LiveSource, Patience
from kimi_console.source.session import Session

QUICK = Patience(first_delay=0.001, last_delay=0.002, ping_interval=30.0)
MakePeer = Callable[..., Any]
"""The fixture's `Peer` factory."""


async def collect(source: LiveSource, until: int) -> list[Event]:
    """Every event up to the one numbered `until`."""
    got: list[Event] = []
    async with asyncio.timeout(20), aclosing(source.batches()) as batches:
        async for batch in batches:
            got += batch
            if got[-1].seq >= until:
                break
    await source.close()
    return got


async def becomes(source: LiveSource, state: str) -> Link:
    """The link once it is in a state."""
    changed = asyncio.Event()
    source.on_link = lambda link: changed.set()
    async with asyncio.timeout(10):
        while source.link.state != state:
            await changed.wait()
            changed.clear()
    return source.link


def texts(events: Sequence[Event]) -> list[str]:
    return [event.body.text for event in events if isinstance(event.body, Note)]


@settings(max_examples=40)
@given(
    cuts=st.lists(st.integers(0, 4000), max_size=12),
    chunk=st.integers(1, 5000),
    before=st.integers(1, 60),
    after=st.integers(0, 20),
    filler=st.integers(0, 120),
)
def test_a_stream_cut_anywhere_loses_and_doubles_nothing(
    make_peer: MakePeer, cuts: list[int], chunk: int, before: int, after: int, filler: int
) -> None:
    async def scenario() -> list[Event]:
        peer = make_peer(cuts=list(cuts), chunk=chunk)
        for number in range(before):
            peer.note(f"{number} {'ä' * filler}")
        async with peer.serving():
            source = LiveSource("peer", peer.dial, patience=QUICK)

            async def grow() -> None:
                for number in range(before, before + after):
                    await asyncio.sleep(0)
                    peer.note(f"{number} {'ä' * filler}")

            growing = asyncio.create_task(grow())
            got = await collect(source, before + after)
            await growing
        return got

    got = asyncio.run(scenario())
    assert [event.seq for event in got] == list(range(1, before + after + 1))
    assert texts(got) == [f"{number} {'ä' * filler}" for number in range(before + after)]


async def test_what_the_agent_no_longer_holds_is_one_visible_gap(make_peer: MakePeer) -> None:
    peer = make_peer(first=31)
    for number in range(40):
        peer.note(str(number))
    async with peer.serving():
        got = await collect(LiveSource("peer", peer.dial, patience=QUICK), 40)
    assert got[0] == Event(1, got[0].time, Gap(1, 30, "rotated"))
    assert [event.seq for event in got] == [1, *range(31, 41)]


async def test_a_hole_in_the_stream_that_nobody_explains_is_a_gap_too(make_peer: MakePeer) -> None:
    peer = make_peer()
    for number in range(9):
        peer.note(str(number))
    del peer.journal[3:5]
    async with peer.serving():
        got = await collect(LiveSource("peer", peer.dial, patience=QUICK), 9)
    assert [event.body for event in got if isinstance(event.body, Gap)] == [Gap(4, 5, "the agent no longer holds them")]


async def test_an_event_that_this_version_cannot_read_keeps_its_place(make_peer: MakePeer) -> None:
    peer = make_peer()
    peer.journal += [
        Event(1, 1.0, Unknown("future", {"a": 1})),
        Event(2, 2.0, Unknown("log", {"run": 7, "lines": "not a list"})),
    ]
    peer.note("after")
    async with peer.serving():
        got = await collect(LiveSource("peer", peer.dial, patience=QUICK), 3)
    assert got[:2] == peer.journal[:2]
    assert texts(got) == ["after"]


async def test_another_journal_starts_the_state_anew(make_peer: MakePeer) -> None:
    peer = make_peer(cuts=[700])
    for number in range(50):
        peer.note(f"old {number}")
    source = LiveSource("peer", peer.dial, patience=QUICK)
    session = Session(source, source)
    async with peer.serving():
        running = asyncio.create_task(session.run())
        seen = asyncio.Event()
        session.on_change(seen.set)
        async with asyncio.timeout(10):
            await seen.wait()
            peer.epoch, peer.journal = "e2", []
            for number in range(3):
                peer.note(f"new {number}")
            while [entry.text for entry in session.state.ring] != ["new 0", "new 1", "new 2"]:
                seen.clear()
                await seen.wait()
        await session.close()
        await running
    assert session.state.seq == 3


async def over_a_lost_end(peer: Any, restart: Callable[[], None], count: int) -> list[Event]:
    """So many events of a peer that loses the last three of nine, does what `restart` does and is dialled again."""
    for number in range(9):
        peer.note(f"old {number}")
    source = LiveSource("peer", peer.dial, patience=QUICK)
    got: list[Event] = []
    async with peer.serving(), asyncio.timeout(10), aclosing(source.batches()) as batches:
        async for batch in batches:
            got += batch
            if len(got) == 9:
                del peer.journal[6:]
                restart()
                peer.drop()
            if len(got) >= count:
                break
    await source.close()
    return got


async def test_an_agent_whose_full_disk_lost_the_end_of_its_journal_hides_nothing_that_came_after(
    make_peer: MakePeer,
) -> None:
    peer = make_peer()

    def restart() -> None:
        peer.pid, peer.begun = 2, 6
        for number in range(5):
            peer.note(f"new {number}")

    got = await over_a_lost_end(peer, restart, 9 + 6 + 5)
    assert texts(got[9:]) == [*(f"old {number}" for number in range(6)), *(f"new {number}" for number in range(5))]


async def test_a_journal_whose_end_went_down_with_its_host_hides_nothing_that_came_after(make_peer: MakePeer) -> None:
    peer = make_peer()
    got = await over_a_lost_end(peer, lambda: peer.note("new"), 9 + 7)
    assert texts(got) == [f"old {number}" for number in (*range(9), *range(6))] + ["new"]
    assert [event.seq for event in got[9:]] == list(range(1, 8)), "the numbers start over, so the state does too"


async def test_the_link_tells_how_it_stands_and_redial_hurries_it(make_peer: MakePeer) -> None:
    peer = make_peer(cuts=[150])
    peer.note("x" * 300)
    source = LiveSource("peer", peer.dial, patience=Patience(first_delay=1000.0, last_delay=1000.0))
    assert source.link.state == "connecting"
    async with peer.serving():
        collecting = asyncio.create_task(collect(source, 1))
        link = await becomes(source, "lost")
        assert "next attempt in" in link.detail
        with pytest.raises(UnavailableError, match="no link to peer now"):
            await source.request("stop")
        source.redial()
        got = await collecting
    assert len(got) == 1
    assert source.link.state == "ended"


async def test_who_closes_while_a_host_is_dialled_is_done(make_peer: MakePeer) -> None:
    peer = make_peer()
    peer.note("here")
    dialling, reached = asyncio.Event(), asyncio.Event()

    async def dial() -> Any:
        dialling.set()
        await reached.wait()
        return await peer.dial()

    source = LiveSource("peer", dial, patience=QUICK)
    async with peer.serving():
        collecting = asyncio.create_task(collect(source, 1))
        await dialling.wait()
        await source.close()
        reached.set()
        assert await collecting == []


async def test_silence_ends_a_link_and_the_next_one_goes_on(make_peer: MakePeer) -> None:
    peer = make_peer(silent=True)
    peer.note("here")
    patience = Patience(first_delay=0.01, last_delay=0.01, ping_interval=0.05)
    source = LiveSource("peer", peer.dial, patience=patience)
    async with peer.serving():
        collecting = asyncio.create_task(collect(source, 1))
        link = await becomes(source, "lost")
        assert "no sign of life" in link.detail
        peer.silent = False
        assert texts(await collecting) == ["here"]


async def test_after_a_sleep_the_link_is_tried_at_once(make_peer: MakePeer) -> None:
    peer = make_peer(silent=True)
    peer.note("here")
    times = iter([0.0, 3600.0])
    patience = Patience(
        first_delay=0.01, last_delay=0.01, ping_interval=0.05, missed_pings=10**6, wall=lambda: next(times, 3600.0)
    )
    source = LiveSource("peer", peer.dial, patience=patience)
    async with peer.serving():
        collecting = asyncio.create_task(collect(source, 1))
        assert "no sign of life" in (await becomes(source, "lost")).detail
        peer.silent = False
        assert texts(await collecting) == ["here"]


async def test_a_command_over_a_broken_link_is_sent_again_under_the_same_id(make_peer: MakePeer) -> None:
    peer = make_peer(answer=lambda method: {"run": "r1"})
    peer.note("x")
    source = LiveSource("peer", peer.dial, patience=QUICK)
    session = Session(source, source)
    async with peer.serving(), asyncio.timeout(10):
        running = asyncio.create_task(session.run())
        await becomes(source, "live")
        peer.silent = True
        launching = asyncio.create_task(source.request("launch", profile={}))
        while not any(method == "launch" for method, _ in peer.calls):
            peer.heard.clear()
            await peer.heard.wait()
        peer.silent = False
        peer.drop()
        assert await launching == {"run": "r1"}
        await session.close()
        await running
    launches = [params["command"] for method, params in peer.calls if method == "launch"]
    assert len(launches) == 2
    assert launches[0] == launches[1]


async def test_a_refusal_keeps_its_slug_message_and_hint(make_peer: MakePeer) -> None:
    refusal = {"error": {"slug": "usage", "message": "no server runs\x1b[2J", "hint": "Launch one first.", "exit": 2}}
    peer = make_peer(answer=lambda method: refusal)
    peer.note("x")
    source = LiveSource("peer", peer.dial, patience=QUICK)
    async with peer.serving(), aclosing(source.batches()) as batches:
        await anext(batches)
        reading = asyncio.create_task(anext(batches))
        with pytest.raises(KimiError) as caught:
            await source.request("stop")
        assert (caught.value.slug, str(caught.value)) == ("usage", "no server runs. Launch one first.")
        assert caught.value.exit == Exit.USAGE
        peer.note("y")
        await reading
        await source.close()


async def test_a_noisy_login_shell_is_skipped(make_peer: MakePeer) -> None:
    peer = make_peer(noise=b"Welcome to gpu-07!\n\n  {not json\nlast login: now ")
    peer.note("x")
    async with peer.serving():
        assert len(await collect(LiveSource("peer", peer.dial, patience=QUICK), 1)) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"noise": b"spam and ham\n" * 16_000}, "without an agent's greeting.*spam and ham"),
        ({"protocol": 9}, "speaks protocol 9, this console 1"),
    ],
)
async def test_a_first_connection_that_fails_says_why(
    make_peer: MakePeer, fields: dict[str, object], words: str
) -> None:
    peer = make_peer(**fields)
    async with peer.serving():
        with pytest.raises(UnavailableError, match=words):
            await LiveSource("peer", peer.dial).start()
