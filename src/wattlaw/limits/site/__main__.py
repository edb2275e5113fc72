"""``python -I -m wattlaw.limits.site prolog``, as Slurm's scripts start it."""

import sys

from wattlaw import crash
from wattlaw.limits.site.main import main

if __name__ == "__main__":
    sys.exit(crash.run(main))
