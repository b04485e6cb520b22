"""What the host shows without asking SGLang: processes, memory, GPUs, ports."""
