"""The operator's console: live panes, replay and control of SGLang runs on near and far hosts."""
