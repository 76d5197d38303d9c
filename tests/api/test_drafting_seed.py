"""Seeds of drafters: derived, so that drafts and acceptance tests never share random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speculant.api.requests import _drafting_seed


@pytest.mark.parametrize("seed", [0, 7, 2**63])
def test_drafter_and_acceptance_never_share_a_stream(seed: int) -> None:
    """Guards exactness: a drafter that draws from its seed must not draw the numbers of the sampler's seed."""
    derived = _drafting_seed(seed)
    assert derived.spawn_key != ()
    own = np.random.default_rng(derived).random(64)
    assert not np.isin(own, np.random.default_rng(seed).random(4096)).any()
    state = int(derived.generate_state(1, np.uint64)[0])
    for used in (state, state & 0xFFFFFFFF):
        assert used != seed
    torch_own = torch.rand(64, generator=torch.Generator().manual_seed(state & (2**63 - 1)))
    torch_sampler = torch.rand(64, generator=torch.Generator().manual_seed(seed))
    assert not torch.equal(torch_own, torch_sampler)


def test_requests_without_a_seed_differ() -> None:
    """Guards unseeded requests: each one's drafter follows from torch's stream, which moves on between them."""
    first = _drafting_seed(None).generate_state(4).tolist()
    assert _drafting_seed(None).generate_state(4).tolist() == first
    torch.rand(1)
    assert _drafting_seed(None).generate_state(4).tolist() != first
