"""`python -m kimi_agent`."""

import sys

from kimi_agent.cli import main

sys.exit(main())
