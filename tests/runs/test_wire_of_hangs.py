"""Over a real agent's socket, with no server: what a bisection and a bundle refuse, and a bundle's way in pieces."""

import base64
import io
import json
import zipfile
from collections.abc import Callable

import pytest

from kimi_agent.errors import KimiError
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client

Dial = Callable[[], Client]


def test_a_bisection_needs_a_start_and_refuses_in_one_sentence(dial: Dial) -> None:
    client = dial()
    with pytest.raises(KimiError, match="there has been no run yet"):
        client.request("bisect")
    with pytest.raises(KimiError, match="no bisection goes on"):
        client.request("bisect_stop")
    profile = {"server": {"model": "/nowhere"}, "capture": {"enabled": False}}
    with pytest.raises(KimiError, match="there is no factor nonsense"):
        client.request("bisect", profile=profile, only=["nonsense"])
    with pytest.raises(KimiError, match="changes nothing in this launch"):
        client.request("bisect", profile=profile, only=["p2p"])


def test_a_launch_that_is_refused_is_a_row_of_the_table_and_not_its_end(dial: Dial) -> None:
    client = dial()
    client.request("bisect", profile={"server": {"model": "/nowhere"}, "capture": {"enabled": False}})
    client.request("subscribe", epoch=None, after=0)
    for line in client.events():
        event = json.loads(line)
        if event["k"] == "bisect" and event["d"]["state"] != "running":
            break
    assert event["d"]["state"] == "done"
    assert event["d"]["attempts"][0]["outcome"] == "skipped"
    assert "cannot be launched" in event["d"]["attempts"][0]["why"]
    assert "could not be started" in event["d"]["conclusion"]


def test_a_bundle_crosses_the_wire_and_a_reader_may_not_ask_for_one(dial: Dial, home: Home) -> None:
    client = dial()
    made = client.request("bundle", hosts=["gpu-07"])
    assert made["run"] is None
    got = b""
    while len(got) < made["size"]:
        piece = client.request("bundle_read", bundle=made["bundle"], offset=len(got))
        got += base64.b64decode(piece["data"])
    with zipfile.ZipFile(io.BytesIO(got)) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == set(made["files"])
    for _ in range(6):
        client.request("bundle")
    assert len(list((home.root / "bundles").glob("*.zip"))) <= 5
    client.request("read_only")
    for method in ("bundle", "bisect", "bisect_stop"):
        with pytest.raises(KimiError, match="read-only"):
            client.request(method)
