"""An HTTP server that implements OpenAI's API and learns from its traffic."""
