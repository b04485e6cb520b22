"""The SGLang plugin: captures hidden states inside the scheduler ranks and writes committed shards."""

__version__ = "0.1.0"
