"""`python -m flowtrain`."""

import sys

from flowtrain.cli.main import main

sys.exit(main())
