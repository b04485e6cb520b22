"""A bundle of a run whose log, journal and profile are full of private things: none is in any file of it."""

import base64
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.bugreport.archive import write_bundle
from kimi_agent.bugreport.gather import log_pieces
from kimi_agent.bugreport.serve import PIECE, Bundles
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.model.events import LogLines, Note, RunStarted, Verdict, VerdictChanged
from kimi_agent.paths import Home
from kimi_agent.runs.journal import Journal
from kimi_agent.runs.record import RunRecord, save

from .planted import FQDN, PLANTS

KNOWN = ("correct horse's battery", "jdoe", "/srv/people/jdoe", "gpu-07")
"""Of the corpus, what only a redactor that was told of this host's names can know."""
RUN = "run-1129120000-abcdef"
LINES = [template.format(plant.value, plant.value) for plant in PLANTS for template in plant.templates]


def home_of(directory: Path) -> Home:
    """A home in which one run has ended and left the whole corpus everywhere."""
    home = Home(directory / "home")
    place = home.run(RUN)
    place.mkdir(parents=True)
    (place / "server.log").write_text("\n".join(f"[2026-11-29 14:03:01 TP0] {line}" for line in LINES), "utf-8")
    home.log.write_text("\n".join(LINES), "utf-8")
    argv = ("python", "-m", "sglang.launch_server", "--api-key", KNOWN[0], "--dist-init-addr", f"{FQDN}:20000",
            "--host", "gpu-07")  # fmt: skip
    env = {"HF_TOKEN": "plain-and-short-1", "MY_SECRET": "8f3a1c", "HOME": "/srv/people/jdoe", "USER": "jdoe"}
    profile: dict[str, object] = {"name": "p", "server": {"model": "/home/roe/models/Kimi", "flags": LINES}, "env": env}
    save(place, RunRecord(RUN, 1, 0, "boot", profile, argv, "0.5.23", True))
    journal = Journal(home.journal)
    journal.append(
        RunStarted(RUN, "p", "m", argv, 1, 2, ("TP0", "TP1"), "gpu-07", 1, "l", "py", "0.5.23", capture=True)
    )
    journal.append(VerdictChanged(RUN, Verdict("exception", LINES[0], "TP0", 0.9, tuple(LINES), (), tuple(LINES))))
    journal.append(LogLines(RUN, 0, ("the log is in the log",)))
    journal.append(Note("error", "\n".join(LINES), RUN))
    journal.close()
    return home


def test_no_planted_secret_survives_in_any_file_and_what_was_taken_out_is_counted(tmp_path: Path) -> None:
    home, path = home_of(tmp_path), tmp_path / "b.zip"
    before = os.umask(0)
    try:
        answer = write_bundle(home, None, path, ["gpu-07", FQDN])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(files) == set(answer["files"])
    assert {"README.txt", "server.log", "run.json", "verdict.json", "events.ndjson", "versions.json", "host.json",
            "removed.json", "agent.log"} <= set(files)  # fmt: skip
    for name, text in files.items():
        for plant in PLANTS:
            for form in {plant.value, json.dumps(plant.value)[1:-1]}:
                assert form.lower() not in text.lower(), f"{form} in {name}"
    removed = json.loads(files["removed.json"])
    assert removed == answer["removed"]
    assert {"secret", "host", "user", "home", "address", "mac", "email", "prompt", "key", "credentials"} <= set(removed)
    assert json.loads(files["verdict.json"])["verdict"]["verdict"]["kind"] == "exception"
    events = [json.loads(line) for line in files["events.ndjson"].splitlines()]
    assert [event["k"] for event in events] == ["run", "verdict", "note"]
    assert json.loads(files["run.json"])["profile"]["env"]["HF_TOKEN"] == "<secret>"
    assert files["server.log"].count("\n") >= len(LINES) - 1


def test_one_run_is_chosen_by_its_name_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    assert write_bundle(home, RUN, tmp_path / "one.zip")["run"] == RUN
    for wrong in ("run-nope", "../x", "/etc"):
        with pytest.raises(UsageError, match="there is no run"):
            write_bundle(home, wrong, tmp_path / "two.zip")
    with pytest.raises(KimiError, match="exists already"):
        write_bundle(home, RUN, tmp_path / "one.zip")
    with pytest.raises(KimiError, match="cannot be written"):
        write_bundle(home, RUN, tmp_path / "nowhere" / "x.zip")


def test_a_home_without_any_run_gives_a_bundle_too(tmp_path: Path) -> None:
    answer = write_bundle(Home(tmp_path / "fresh"), None, tmp_path / "b.zip")
    assert answer["run"] is None
    assert "versions.json" in answer["files"]


async def test_it_is_read_over_the_wire_piece_by_piece(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    bundles = Bundles(home)
    answer = await bundles.make(hosts=["gpu-07"])
    assert RUN in answer["bundle"]
    path = home.root / "bundles" / answer["bundle"]
    path.write_bytes(path.read_bytes() + os.urandom(2 * PIECE))
    got = b""
    while True:
        piece = await bundles.read(answer["bundle"], len(got))
        assert len(json.dumps(piece)) < 1 << 20
        data = base64.b64decode(piece["data"])
        if not data:
            break
        got += data
    assert got == path.read_bytes()
    for wrong in ("nope.zip", "../journal/lock", ""):
        with pytest.raises(UsageError, match="there is no bundle"):
            await bundles.read(wrong)
    with pytest.raises(KimiError, match="there is no run"):
        await bundles.make("run-nope")


@given(st.lists(st.text("ab\u00e4", max_size=30), min_size=1, max_size=40), st.integers(1, 60), st.integers(1, 60))
def test_a_long_log_keeps_its_ends_whole_line_by_whole_line(lines: list[str], head: int, tail: int) -> None:
    text = "\n".join(lines)
    path = Path("/dev/shm") / f"kimi-bundle-{os.getpid()}.log"
    try:
        path.write_text(text, "utf-8")
        out = "".join(log_pieces(path, head, tail))
    finally:
        path.unlink()
    if "bytes are left out here" not in out:
        assert out == text
        return
    first, _, rest = out.partition("[")
    last = rest.partition("\n")[2]
    assert text.startswith(first)
    assert text.endswith(last)
    assert all(line in lines for line in [*first.split("\n"), *last.split("\n")] if line)
