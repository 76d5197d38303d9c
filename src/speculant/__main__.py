"""`python -m speculant`."""

from __future__ import annotations

import sys

from speculant.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
