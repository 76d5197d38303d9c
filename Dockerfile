# syntax=docker/dockerfile:1
# speculant serve. On CPUs:
#   docker build -t speculant .
#   docker run -p 8000:8000 -v speculant:/data -e SPECULANT_API_KEYS speculant [MODEL] [OPTIONS]
# With CUDA, whose libraries come with PyTorch:
#   docker build -t speculant:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker run --gpus all -p 8000:8000 -v speculant:/data -e SPECULANT_API_KEYS speculant:cuda [MODEL] [OPTIONS]
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=serve,share
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PATH=/opt/speculant/bin:$PATH
WORKDIR /source
# What changes rarely comes first, so that its layer is kept.
COPY constraints.txt ./
RUN python -m venv /opt/speculant \
    && pip install -c constraints.txt setuptools \
    && pip install -c constraints.txt --no-deps --index-url "${TORCH_INDEX}" torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt --no-build-isolation ".[${EXTRAS}]"

FROM python:${PYTHON}
# Code for the processor is compiled at the first start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /data --create-home speculant
COPY --from=build /opt/speculant /opt/speculant
# There is no key here: beyond loopback the server refuses to start without SPECULANT_API_KEYS.
ENV PATH=/opt/speculant/bin:$PATH \
    HF_HOME=/data/huggingface \
    NUMBA_CACHE_DIR=/data/cache/numba \
    XDG_CACHE_HOME=/data/cache \
    SPECULANT_HOST=0.0.0.0 \
    SPECULANT_LOG_FORMAT=json \
    SPECULANT_MEMORY=/data/memory.speculant
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=5m --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ.get(\"SPECULANT_PORT\", 8000)}/health', timeout=4)"]
ENTRYPOINT ["speculant", "serve"]
