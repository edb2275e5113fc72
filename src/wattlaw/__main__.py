"""``python -m wattlaw`` is the command ``wattlaw``."""

import sys

from wattlaw.common.isolation import isolate

isolate()  # before anything else is imported

from wattlaw.cli.main import main  # noqa: E402

sys.exit(main())
