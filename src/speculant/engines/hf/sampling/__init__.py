"""What a request does with logits: `generate`'s preparation, processors, grammars, log-probabilities, the sampler."""
