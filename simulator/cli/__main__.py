"""`python -m simulator.cli` is `servesim`."""

from simulator.cli import main

raise SystemExit(main())
