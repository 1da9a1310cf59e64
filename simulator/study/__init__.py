"""What is done with scenarios: one run, or many. Above everything but the command line."""
