"""Dumps on this host: found, listed, shown and verified. The layout itself is `kimi_capture.format`'s."""
