"""Metrics, statistics, files and figures from the columns that a run recorded, without dependence on the engine."""
