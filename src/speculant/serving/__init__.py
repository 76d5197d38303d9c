"""An HTTP server that speaks OpenAI's API and learns from its traffic."""
