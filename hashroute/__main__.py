"""`python -m hashroute` is the command `hashroute`."""

import sys

from hashroute.cli.app import main

sys.exit(main())
