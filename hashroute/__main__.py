"""`python -m hashroute` is the command `hashroute`."""

import sys

from hashroute.cli import main

sys.exit(main())
