"""What a request asks of logits: what `generate` prepared, processors, grammars, log-probabilities, the sampler."""
