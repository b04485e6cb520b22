"""Whole starts of two ranks in the wording of every SGLang that changed it, and of vLLM."""

VERSIONS = ("0.2.15", "0.3.6", "0.4.0", "0.4.3", "0.4.6", "0.4.9", "0.5.2", "0.5.4", "0.5.6", "0.5.9", "0.5.10",
            "0.5.12", "0.5.15", "0.5.18", "0.5.23")  # fmt: skip


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _load_end(version: tuple[int, ...]) -> str:
    if version < (0, 4, 3):
        return "Load weight end. type=X, dtype=torch.bfloat16, avail mem=21.20 GB"
    if version < (0, 5, 9):
        return "Load weight end. type=X, dtype=torch.bfloat16, avail mem=21.20 GB, mem usage=72.90 GB."
    if version < (0, 5, 10):
        return (
            "Load weight end. elapsed=412.20 s, type=X, dtype=torch.bfloat16, avail mem=21.20 GB, mem usage=72.90 GB."
        )
    return "Load weight end. elapsed=412.20 s, type=X, quant=fp8, fmt=e4m3, avail mem=21.20 GB, mem usage=72.90 GB."


def _cache(version: tuple[int, ...]) -> list[str]:
    if version < (0, 4, 3):
        return []
    if version < (0, 4, 6):
        return ["KV Cache is allocated. #tokens: 190000, K size: 1.10 GB, V size: 1.10 GB"]
    if version < (0, 5, 15):
        return ["KV Cache is allocated. #tokens: 190000, KV size: 12.43 GB"]
    if version < (0, 5, 23):
        return ["KV Cache is allocated. dtype: torch.bfloat16, #tokens: 190000, KV size: 12.43 GB"]
    return [
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 190000, KV size: 12.43 GB",
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 190000, KV size: 12.43 GB",
    ]


def _graphs(version: tuple[int, ...]) -> list[str]:
    if version < (0, 4, 3):
        return ["Capture cuda graph begin. This can take up to several minutes.",
                "Capture cuda graph end. Time elapsed: 12.10 s"]  # fmt: skip
    if version < (0, 4, 6):
        return ["Capture cuda graph begin. This can take up to several minutes. avail mem=8.40 GB",
                "Capture cuda graph end. Time elapsed: 12.10 s. avail mem=9.10 GB. mem usage=2.20 GB."]  # fmt: skip
    if version < (0, 5, 15):
        return ["Capture cuda graph begin. This can take up to several minutes. avail mem=8.40 GB",
                "Capture cuda graph bs [1, 2, 4]", "Capture draft extend cuda graph begin (step 1). avail mem=8.40 GB",
                "Capture cuda graph end. Time elapsed: 12.10 s. mem usage=2.20 GB. avail mem=9.10 GB."]  # fmt: skip
    size = "num_tokens_per_bs=1" if version < (0, 5, 18) else "num_tokens_per_req=1"
    return [f"Capture target decode CUDA graph begin. backend=full, {size}, bs=[1, 2], avail mem=8.40 GB",
            "Capture target decode CUDA graph end. elapsed=12.10 s, mem usage=2.20 GB, avail mem=9.10 GB."]  # fmt: skip


def _rank_lines(version: tuple[int, ...]) -> list[str]:
    joins = "nccl" if version < (0, 3, 6) else "torch distributed" if version < (0, 5, 18) else "parallel"
    ends = (
        "ends." if version < (0, 4, 3) else "ends. mem usage=1.12 GB" if version < (0, 5, 9) else "ends. elapsed=3.4 s"
    )
    autotune = ["Running FlashInfer autotune...", "FlashInfer autotune completed."] if version >= (0, 5, 9) else []
    return [f"Init {joins} begin.", f"Init {joins} {ends}", "Load weight begin. avail mem=94.21 GB", _load_end(version),
            *_cache(version), "Memory pool end. avail mem=8.91 GB", *autotune, *_graphs(version)]  # fmt: skip


def _first_rank_lines(version: tuple[int, ...]) -> list[str]:
    sizes = "max_total_num_tokens=190000, max_prefill_tokens=16384, max_running_requests=2049, context_len=262144"
    return [sizes if version < (0, 4, 9) else f"{sizes}, available_gpu_mem=8.41 GB"]


def start(name: str) -> list[str]:
    """The lines of a good start, two ranks side by side, a line a second."""
    version = _number(name)
    dated = version >= (0, 4, 3)
    tags = ("TP0", "TP1") if version < (0, 5, 4) else ("TP0 EP0", "TP1 EP1") if version < (0, 5, 9) else ("TP0", "TP1")
    lines: list[str] = []

    def say(tag: str, message: str) -> None:
        clock = f"13:{len(lines) // 60:02d}:{len(lines) % 60:02d}"
        lines.append(f"[{'2026-11-29 ' if dated else ''}{clock}{f' {tag}' if tag else ''}] {message}")

    say(
        "",
        "server_args=ServerArgs(model_path='/models/k', tp_size=2, dp_size=1)"
        if version < (0, 5, 10)
        else "server_args={'tp_size': 2}",
    )
    for message in _rank_lines(version):
        for tag in tags:
            say(tag, message)
        if message.startswith("Load weight begin"):
            lines.append("Loading safetensors checkpoint shards:  23% Completed | 14/64 [01:10<03:59,  4.79s/it]")
            lines.append("")
        if message.startswith("Capture cuda graph bs"):
            lines.append("Capturing batches (bs=8 avail_mem=7.10 GB):  43%|████▎     | 10/23 [00:04<00:05,  2.2it/s]")
    for message in _first_rank_lines(version):
        say(tags[0], message)
    for message in ("INFO:     Started server process [4711]", "INFO:     Waiting for application startup.",
                    "INFO:     Application startup complete.", "INFO:     Uvicorn running on http://0.0.0.0:30000",
                    'INFO:     127.0.0.1:37572 - "GET /get_model_info HTTP/1.1" 200 OK'):  # fmt: skip
        say("", message)
    say(tags[0], "Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, ")
    say("", "The server is fired up and ready to roll!")
    return lines


VLLM = """\
(APIServer pid=100) INFO 11-29 13:45:00 [api_server.py:1839] vLLM API server version 0.11.0
(EngineCore pid=200) INFO 11-29 13:45:09 [core.py:654] Initializing a V1 LLM engine (v0.11.0) with config: model='k'
(Worker_TP0 pid=301) INFO 11-29 13:45:20 [parallel_state.py:1208] world_size=2 rank=0 local_rank=0 backend=nccl
(Worker_TP1 pid=302) INFO 11-29 13:45:20 [parallel_state.py:1208] world_size=2 rank=1 local_rank=1 backend=nccl
(Worker_TP0 pid=301) INFO 11-29 13:45:21 [pynccl.py:103] vLLM is using nccl==2.27.3
(Worker_TP0 pid=301) INFO 11-29 13:45:25 [gpu_model_runner.py:2602] Starting to load model /models/k...
(Worker_TP1 pid=302) INFO 11-29 13:45:25 [gpu_model_runner.py:2602] Starting to load model /models/k...
(Worker_TP0 pid=301) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.10s/it]
(Worker_TP0 pid=301) INFO 11-29 13:45:40 [default_loader.py:267] Loading weights took 12.10 seconds
(Worker_TP1 pid=302) INFO 11-29 13:45:41 [default_loader.py:267] Loading weights took 12.90 seconds
(Worker_TP0 pid=301) INFO 11-29 13:45:41 [gpu_model_runner.py:2653] Model loading took 12.1 GiB memory and 13 seconds
(Worker_TP0 pid=301) INFO 11-29 13:45:50 [backends.py:559] Dynamo bytecode transform time: 5.31 s
(Worker_TP1 pid=302) INFO 11-29 13:46:10 [monitor.py:34] torch.compile takes 20.10 s in total
(Worker_TP0 pid=301) INFO 11-29 13:46:20 [gpu_worker.py:298] Available KV cache memory: 51.23 GiB
(Worker_TP1 pid=302) INFO 11-29 13:46:20 [gpu_worker.py:298] Available KV cache memory: 51.23 GiB
(EngineCore pid=200) INFO 11-29 13:46:21 [kv_cache_utils.py:1087] GPU KV cache size: 855,790 tokens
(Worker_TP0 pid=301) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|█▏        | 8/67 [00:01<00:09]
(Worker_TP1 pid=302) INFO 11-29 13:46:40 [gpu_model_runner.py:3480] Graph capturing finished in 11 secs
(EngineCore pid=200) INFO 11-29 13:46:41 [core.py:210] init engine (profile, create kv cache, warmup) took 59 seconds
(APIServer pid=100) INFO 11-29 13:46:42 [api_server.py:1912] Starting vLLM API server 0 on http://0.0.0.0:8000
(APIServer pid=100) INFO:     Started server process [100]
(APIServer pid=100) INFO:     Waiting for application startup.
(APIServer pid=100) INFO:     Application startup complete.
""".splitlines()
