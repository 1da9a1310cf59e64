"""`python -m simulator` is `servesim`."""

from simulator.cli import main

raise SystemExit(main())
