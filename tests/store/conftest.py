"""Property tests without a time limit: the machine may be busy."""

from hypothesis import settings

settings.register_profile("kimi", deadline=None)
settings.load_profile("kimi")
