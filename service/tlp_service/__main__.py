"""``python -m tlp_service`` is ``tlp``."""

import sys

from tlp_service.cli import main

sys.exit(main())
