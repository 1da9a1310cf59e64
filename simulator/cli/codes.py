"""The exit codes of `servesim`, the same for all verbs."""

EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_UNSTEADY, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 3, 130, 143

#: The meaning of each code, as `servesim --help` prints it.
MEANINGS = {
    EXIT_DONE: "done",
    EXIT_FAILED: "a check failed, or the scheduler deadlocked",
    EXIT_INPUT: "bad input: an option, a file, or output that cannot be written",
    EXIT_UNSTEADY: "no steady state, although run.steady_state is required",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_TERMINATED: "ended by SIGTERM; no incomplete files are left",
}

#: The codes that verbs without a steady state, and verbs without checks, do not return.
NO_STEADY_STATE = {EXIT_UNSTEADY: ""}
NO_CHECK = NO_STEADY_STATE | {EXIT_FAILED: ""}
