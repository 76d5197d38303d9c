"""When the first tokens of requests that are sent together come from two versions of `speculant serve`, in turns.

    python benchmarks/serving_bursts.py FOLDER --before OLD/src --after src -o benchmarks/results/serving-bursts.json

Bursts of `--clients` requests with new prompts of random tokens reach an idle server; each burst is followed by a
single request. While one version is measured, the other is suspended.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from processes import HttpProcess
from serving_prompts import ask
from serving_systems import speculant_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="the model's folder")
    parser.add_argument("--before", type=Path, required=True, help="the `src` folder of the earlier version")
    parser.add_argument("--after", type=Path, required=True, help="the `src` folder of the later version")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=4, help="requests of a burst; default: 4")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a prompt; default: 32")
    parser.add_argument("--bursts", type=int, default=10, help="bursts of each version; default: 10")
    args = parser.parse_args()
    from serving import described

    with tempfile.TemporaryDirectory() as scratch:
        servers = {
            name: HttpProcess(
                name,
                lambda port: speculant_command(args.model, port),
                args.model,
                Path(scratch) / f"{name}.log",
                variables={"PYTHONPATH": str(source.resolve())},
            )
            for name, source in (("before", args.before), ("after", args.after))
        }
        met: dict[str, list[list[float]]] = {name: [] for name in servers}
        alone: dict[str, list[float]] = {name: [] for name in servers}
        try:
            for server in servers.values():
                send(server.port, 1, args.tokens)  # warm-up
                server.pause()
            for turn in range(args.bursts):
                for name in list(servers)[:: 1 if turn % 2 else -1]:
                    servers[name].resume()
                    met[name].append(send(servers[name].port, args.clients, args.tokens))
                    alone[name] += send(servers[name].port, 1, args.tokens)
                    servers[name].pause()
        finally:
            for server in servers.values():
                server.resume()
                server.close()
    result = {
        "environment": described(),
        "settings": {"clients": args.clients, "tokens": args.tokens, "bursts": args.bursts, "model": args.model.name},
        "versions": {
            name: {
                "last_first_token": round(float(np.median([max(burst) for burst in met[name]])), 4),
                "mean_first_token": round(float(np.mean(met[name])), 4),
                "first_token_alone": round(float(np.median(alone[name])), 4),
                "bursts": np.round(met[name], 4).tolist(),
            }
            for name in met
        },
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, found in result["versions"].items():
        print(name, {key: value for key, value in found.items() if key != "bursts"})


def send(port: int, clients: int, tokens: int) -> list[float]:
    """Return the seconds to the first token of each of `clients` requests that are sent together."""

    def first_token(_: int) -> float:
        began = time.perf_counter()
        times = list(ask(port, tokens, max_tokens=8, stream=True))
        return times[0] - began

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(first_token, range(clients)))


if __name__ == "__main__":
    main()
