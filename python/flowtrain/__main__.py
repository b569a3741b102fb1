"""`python -m flowtrain`."""

import sys

from flowtrain.cli.main import command

sys.exit(command())
