"""`kimi-agent preflight` and the launch that it guards, with the real SGLang's own flags; no server is started."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

pytestmark = pytest.mark.engine


def test_a_truncated_model_is_refused_by_preflight_and_by_launch_in_seconds(
    engine: Engine, tmp_path: Path, dial: Callable[[], Client]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in (engine.models / "tiny-kimi25").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 4096)
    profile = demo_profile(engine, free_port())
    profile["server"]["model"] = str(model)
    client = dial()
    began = time.monotonic()
    answer = client.request("preflight", profile=profile)
    assert time.monotonic() - began < 20
    assert [one["slug"] for one in answer["problems"]] == ["model-files"]
    assert "model.safetensors is truncated" in answer["problems"][0]["message"]
    assert {one["outcome"] for one in answer["checks"]} <= {"ok", "warn", "refuse", "not checked"}
    assert all(one["message"] for one in answer["checks"])
    with pytest.raises(KimiError, match=r"model\.safetensors is truncated"):
        client.request("launch", profile=profile)
    assert client.request("status")["run"] is None

    text = tmp_path / "p.toml"
    server = f'model = "{model}"\npython = "{engine.python}"\nport = 29999\nflags = ["--device", "cpu"]'
    text.write_text(f"[server]\n{server}\n[capture]\nenabled = false\n")
    command = [str(engine.python), "-m", "kimi_agent", "preflight", str(text), "--json", "--home", str(tmp_path / "h")]
    env = os.environ | {"PYTHONPATH": str(ensure_bundle())}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["argv", "sglang", "ranks", "problems", "notes", "checks"]
    assert found["checks"][0]["outcome"] == "refuse"
