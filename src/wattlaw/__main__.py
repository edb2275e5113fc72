"""``python -m wattlaw`` is the command ``wattlaw``."""

import sys

from wattlaw.cli.main import main

sys.exit(main())
