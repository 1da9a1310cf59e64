"""Engine cores of a pipeline, which share its stages."""

from __future__ import annotations

from simulator.engine.core import EngineCore
from simulator.engine.device import Pipeline


class PipelineCore(EngineCore):
    """An engine core whose steps run on the stages of a pipeline, which it shares with other cores."""

    def share(self, pipeline: Pipeline) -> None:
        """Set the pipeline of the steps; to be called before the clock runs."""
        self.pipeline = pipeline
