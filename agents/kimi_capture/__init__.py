"""The SGLang plugin: captures hidden states inside the scheduler ranks and writes committed shards."""
