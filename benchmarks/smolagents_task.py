"""Run smolagents' `CodeAgent` on a task, for `serving_agents.py`; runs in an environment with smolagents alone.

Prints the model's answers, as the agent received them, as a JSON list on the last line.
"""

from __future__ import annotations

import json
import sys

from smolagents import CodeAgent, OpenAIModel


def main() -> None:
    """Run the agent in the current folder."""
    address, name, max_tokens, task = sys.argv[1:]
    model = OpenAIModel(
        name,
        api_base=f"{address}/v1",
        api_key="none",
        temperature=0,
        max_tokens=int(max_tokens),
        flatten_messages_as_text=True,
    )
    agent = CodeAgent([], model, additional_authorized_imports=["pathlib"], verbosity_level=0)
    assert agent.run(task) == "Done."
    print(json.dumps([step.model_output for step in agent.memory.steps if getattr(step, "model_output", None)]))


if __name__ == "__main__":
    main()
