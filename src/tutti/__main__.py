"""`python -m tutti` is the command `tutti`."""

import sys

from tutti.cli import main

if __name__ == "__main__":
    sys.exit(main())
