"""Compilation of constraints on a separate thread, so that it delays neither rounds nor prompts of other requests.

The number of constraints is bounded by the places in the queue, which requests must have first. The time of a grammar
is bounded by llguidance's own limits, and waiting for it by `SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from speculant.api.constraints import CompiledConstraint, Constraint
from speculant.core.errors import SpeculantError
from speculant.serving.errors import ApiError
from speculant.serving.formats import AnswerFormat

if TYPE_CHECKING:
    from speculant.api.speculator import Speculator

SECONDS = 20.0  # maximum time that a request waits for its grammar, including those before it
logger = logging.getLogger(__name__)


class GrammarCompiler:
    """Compiles constraints for one model."""

    def __init__(self, speculator: Speculator, *, seconds: float = SECONDS) -> None:
        """Create a compiler; a request waits at most `seconds`."""
        self._speculator, self._seconds = speculator, seconds
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculant-grammar")

    def warm_up(self) -> None:
        """Start building llguidance's tokenizer, which the first constraint would otherwise wait for."""
        self._worker.submit(self._try)

    def close(self) -> None:
        """Stop the thread."""
        self._worker.shutdown(cancel_futures=True)

    async def compile(self, wanted: AnswerFormat, ends: Sequence[int] | None) -> CompiledConstraint:
        """Compile a constraint for texts that end with the tokens `ends`, or with the model's own if None.

        Raises:
            ApiError: the constraint is refused, or compiling takes too long.
        """
        compiling = asyncio.get_running_loop().run_in_executor(self._worker, self._compile, wanted.constraint, ends)
        try:
            return await asyncio.wait_for(compiling, self._seconds)
        except SpeculantError as error:  # the constraint is invalid, or the model cannot be constrained
            raise ApiError(400, str(error), param=wanted.param, code="invalid_value") from error
        except asyncio.TimeoutError:
            message = "the constraint takes too long to compile. Simplify it, or try again."
            raise ApiError(400, message, param=wanted.param, code="invalid_value") from None

    def _compile(self, constraint: Constraint, ends: Sequence[int] | None) -> CompiledConstraint:
        return self._speculator.compile_constraint(constraint, eos_token_id=ends)

    def _try(self) -> None:
        try:
            self._compile(Constraint.json_object(compact=True), None)
        except SpeculantError as error:
            logger.info("constraints are not available: %s", error)
