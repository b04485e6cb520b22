"""SGLang plugin that makes Kimi's latent attention right on the torch_native CPU backend."""


def register() -> None:
    """Entry point of `sglang.srt.plugins`: choose the absorbed (latent) form for every forward."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    # Prefill would otherwise expand heads over the latent KV pool, whose shapes do not fit.
    AttentionBackendRegistry.register("torch_native", lambda attn, batch: AttnForwardMethod.MLA)
    # Data-parallel attention asks every backend for this, and the CPU one does not have it.
    if not hasattr(TorchNativeAttnBackend, "get_cpu_graph_seq_len_fill_value"):
        TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: 1
