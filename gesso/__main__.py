"""`python -m gesso` is the command `gesso`."""

import sys

from gesso.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
