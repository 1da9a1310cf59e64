"""From the columns that a run recorded to metrics, statistics, files and pictures. Knows nothing of the engine."""
