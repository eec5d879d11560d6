"""`python -m remem` is the command `remem`."""

import sys

from remem.cli.main import main

sys.exit(main())
