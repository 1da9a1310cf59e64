"""The public interface, `simulator.NAME`: one module for each subject, so that none imports more than it needs."""
