"""`python -m molt_tui`."""

import sys

from molt_tui.cli import main

sys.exit(main())
