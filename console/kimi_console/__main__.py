"""`python -m kimi_console`."""

import sys

from kimi_console.cli import main

sys.exit(main())
