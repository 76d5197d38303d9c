"""The base class of drafters that leave out layers of the target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from speculant.core.drafter import Drafter, Session, SessionRequest
from speculant.core.engine import NO_OUTPUTS, RequestedOutputs
from speculant.core.sublayers import Sublayers
from speculant.drafters.layers.session import LayerSession
from speculant.drafters.models.shapes import Shape


class LayerDrafter(Drafter):
    """Drafts with some layers or sublayers of the target, in the same way in every round."""

    def __init__(self, layers: Sublayers, shape: Callable[[], Shape]) -> None:
        """Create the drafter.

        Args:
            layers: the sublayers that draft.
            shape: function that returns a new shape of drafts for a request.
        """
        shape()  # settings are checked before the first request
        self.layers, self._shape = layers, shape
        self._tried = False

    @property
    def needs(self) -> RequestedOutputs:
        return NO_OUTPUTS

    def open(self, start: SessionRequest) -> Session:
        """Start a request.

        Raises:
            UnsupportedError: layers of the target cannot be left out after all.
        """
        self.try_layers(start)
        return LayerSession(start, self.layers, self._shape())

    def try_layers(self, start: SessionRequest) -> None:
        """Run one token through the layers before the first draft, so that failures show early."""
        target = start.target
        assert target is not None  # set by every path that decodes with a model
        if self._tried or not target.depth:
            return
        try:
            target.forward(start.prompt[-1:], np.array([-1], np.int32), layers=self.layers)
        finally:
            target.rollback()
        self._tried = True
