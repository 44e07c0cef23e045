"""``python -m holdfast.cli``."""

import sys

from holdfast.cli import main

sys.exit(main())
