"""Metrics by vLLM's names: what its dashboards ask for is there, of the right kind, after some traffic."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from servers import Connect, chat, completion
from speculant.serving.metric_families import VLLM_BUCKETS

pytestmark = pytest.mark.anyio

# Of the dashboards below examples/observability in vLLM's repository (prometheus_grafana/grafana.json and
# dashboards/grafana/vllm_overview.json, vllm_speculative_decoding.json and vllm_service_status.json, and of
# vllm_kv_cache.json what is not about blocks, transfers and connectors): names and kinds.
ASKED = {
    "gauge": (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
        "engine_sleep_state",
    ),
    "counter": (
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "generation_tokens_total",
        "request_success_total",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    ),
    "histogram": (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "iteration_tokens_total",
    ),
}
LABELS = '{engine="0",model_name="tiny"'


def read(page: str) -> tuple[dict[str, str], dict[str, float]]:
    """Return the kinds of the families, and the values of the samples."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)), {name: float(value) for name, value in lines}


async def traffic(client: Any) -> None:
    """Send requests that draft, share a prompt, have several texts, fail and end early."""
    prompt = [3 + place % 50 for place in range(100)]
    for _ in range(2):
        assert (await client.post("/v1/completions", json=completion(prompt, max_tokens=40))).status_code == 200
    several, wrong = completion(n=2, max_tokens=5), chat(model="another")
    answers = await asyncio.gather(
        client.post("/v1/completions", json=several), client.post("/v1/chat/completions", json=wrong)
    )
    assert [each.status_code for each in answers] == [200, 404]


async def test_vllms_dashboards_find_what_they_ask_for(connect: Connect) -> None:
    """Guards dashboards and autoscalers made for vLLM: names, kinds, labels and sums."""
    async with connect(metrics_prefix="vllm:") as client:
        await traffic(client)
        kinds, values = read((await client.get("/metrics")).text)
    for kind, names in ASKED.items():
        for name in names:
            assert kinds.get(f"vllm:{name}") == kind, name
            sample = f"vllm:{name}_count" if kind == "histogram" else f"vllm:{name}"
            assert any(each.startswith(sample + '{engine="0",') for each in values), name
    assert values[f"vllm:request_prompt_tokens_count{LABELS}}}"] == 4
    assert values[f"vllm:request_generation_tokens_sum{LABELS}}}"] == 90
    assert values[f"vllm:request_max_num_generation_tokens_sum{LABELS}}}"] == 85
    assert values[f"vllm:request_params_n_sum{LABELS}}}"] == 4
    assert values[f"vllm:prefix_cache_hits_total{LABELS}}}"] >= 96
    assert values[f"vllm:prefix_cache_hits_total{LABELS}}}"] <= values[f"vllm:prefix_cache_queries_total{LABELS}}}"]
    phases = [values[f"vllm:request_{each}_time_seconds_sum{LABELS}}}"] for each in ("queue", "prefill", "decode")]
    assert sum(phases) <= values[f"vllm:e2e_request_latency_seconds_sum{LABELS}}}"] + 1e-6
    success = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
    assert values[success] == 4
    assert values['http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'] == 3
    assert values['http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"}'] == 1
    assert "speculant_memory_bytes" in kinds
    assert not any(name.startswith("vllm:memory") for name in kinds)


async def test_bounds_of_vllms_buckets(connect: Connect) -> None:
    """Guards panels that count the requests below a bound, which is there or is not."""
    async with connect(metrics_prefix="vllm:") as client:
        _, values = read((await client.get("/metrics")).text)
    for bound in VLLM_BUCKETS.first:
        assert f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{float(bound)}",model_name="tiny"}}' in values


async def test_our_names_have_the_same_kinds(connect: Connect) -> None:
    """Guards a change of the prefix: what is not a constant has the same name behind either of them."""
    constant = ("num_requests_waiting_by_reason", "engine_sleep_state", "num_preemptions_total")
    async with connect() as client:
        await traffic(client)
        kinds, values = read((await client.get("/metrics")).text)
    for kind, names in ASKED.items():
        for name in set(names) - set(constant):
            assert kinds.get(f"speculant_{name}") == kind, name
    assert 0 <= values['speculant_kv_cache_usage_perc{model_name="tiny"}'] <= 1


async def test_errors_and_clients_that_leave_are_reasons_by_vllms_names(connect: Connect) -> None:
    """Guards error ratios of vLLM's dashboards, which divide by all reasons."""
    async with connect(metrics_prefix="vllm:", request_seconds=1e-6) as client:
        late = await client.post("/v1/completions", json=completion(max_tokens=400))
        assert late.status_code == 504
        _, values = read((await client.get("/metrics")).text)
    assert values['vllm:request_success_total{engine="0",finished_reason="error",model_name="tiny"}'] == 1
