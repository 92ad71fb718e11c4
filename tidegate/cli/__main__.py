import sys

from tidegate.cli.main import main

sys.exit(main())
