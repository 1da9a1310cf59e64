"""Laws of operators: a physical base, and a table of the ratio of measured times to it."""
