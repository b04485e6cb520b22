"""The agent on the GPU host: launches SGLang, watches it, journals what happens, serves consoles."""

__version__ = "0.1.0"
