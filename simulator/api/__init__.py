"""The public interface: what `simulator.NAME` is. A module a subject, so that none imports more than it needs."""
