"""The discrete-event engine: clock, source, cluster, engine cores. The only package that imports SimPy."""
