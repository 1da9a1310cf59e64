"""Coasting: many coalesced steps while every sequence decodes, without other events."""

from __future__ import annotations

from cost_models.shape import BatchShape, CostModel
from simulator.engine.batches.interface import Step
from simulator.engine.batches.lazy import LazyBatch
from simulator.engine.clock import Clock
from simulator.engine.device import Device
from simulator.engine.logs.step_log import StepLog

#: Most coalesced steps, and their least number for which the cost model computes all at once.
_MOST, _VECTOR = 256, 12


class Coasting:
    """Coalesced steps that an engine core's loop would form until the next event.

    The policy's plan cannot change while no request arrives, waits, prefills or ends and the blocks suffice.
    """

    def __init__(self, clock: Clock, batch: LazyBatch, cost: CostModel, device: Device, log: StepLog) -> None:
        self._clock, self._batch, self._cost, self._device, self._log = clock, batch, cost, device, log

    def run(self, until_ns: int, following: Step | None) -> Step | None:
        """Run the steps that end before `until_ns`; return the last one of them if it is still in flight.

        `following` is the step in flight after the one that has just ended, if there is one.
        """
        clock, batch, device = self._clock, self._batch, self._device
        now = clock._now
        if not batch.quiet_steps(1) or (following is not None and (following.ending or following.end_ns >= until_ns)):
            return following
        shape = batch.next_decodes()
        first_ns, host_ns, _ = self._cost.step_cost(shape)
        prepared, busy = device.prepared_ns, device.free_ns
        if (busy if following is not None else max(prepared, now) + host_ns + first_ns) >= until_ns:
            return following
        within = (until_ns - now) / max(first_ns, 1)
        quiet = batch.quiet_steps(_MOST if within >= _MOST else int(within) + 1)
        devices, blocks = self._devices_ns(shape, first_ns, quiet), batch.pool.blocks - batch.pool.free
        done, decodes, running = 0, shape.decodes, batch.running
        write, lacking = self._log.write, batch.lacking_blocks(len(devices))
        for device_ns, lack in zip(devices, lacking, strict=True):
            prepares = max(prepared, now) + host_ns
            start_ns = max(busy, prepares)
            end_ns = start_ns + device_ns
            ends = end_ns if following is None else busy  # the end of a step after which the next one is formed
            if ends >= until_ns:
                break
            blocks += lack
            write((now, start_ns, end_ns, decodes, 0, running, 0, blocks))
            prepared, busy, now, done = prepares, end_ns, ends, done + 1
        if not done:
            return following
        device.prepared_ns, device.free_ns = prepared, busy
        self._log.completed += done
        self._log.pack()
        clock.move(now)
        coasted = batch.coast(done)
        if following is None:
            return None
        coasted.end_ns = busy
        return coasted

    def _devices_ns(self, shape: BatchShape, first_ns: int, steps: int) -> list[int]:
        """Return the device times of `steps` decode steps, of which `shape` is the first; `first_ns` is its time."""
        times = [first_ns] if steps else []
        if steps >= _VECTOR:
            times[:] = self._cost.decode_run(shape, steps).tolist()
            return times
        decodes, context, window_context, _, _, _, _, _ = shape
        for _ in range(1, steps):
            context += decodes
            times.append(self._cost.step_cost(BatchShape(decodes, context, window_context, (), 0, decodes)).device_ns)
        return times


def build_coasting(clock: Clock, batch: object, cost: CostModel, device: Device, log: StepLog) -> Coasting | None:
    """Build the coasting of an engine core; None if its batch does not support it."""
    return Coasting(clock, batch, cost, device, log) if isinstance(batch, LazyBatch) else None
