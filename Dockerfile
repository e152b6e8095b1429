# One image for CPU and GPU workers: what differs is the torch that the build finds. See docs/docker.md.

FROM python:3.11-slim-bookworm AS build
# Base of another wheel index for torch (PyTorch's own CPU or CUDA one); empty: what pip is set up to use.
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/herd
ENV PATH=/opt/herd/bin:$PATH
WORKDIR /build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY constraints.txt ./
# torch first and alone: an extra index never sees the other names, and the big layer outlives changes of ours.
RUN pip install ${TORCH_INDEX_URL:+--retries 0 --timeout 5 --extra-index-url "$TORCH_INDEX_URL"} -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
RUN pip install -c constraints.txt '.[worker,gateway]' && HERD_KERNELS_DIR=/opt/herd/kernels herd kernels build --all

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="llama-herd" \
      org.opencontainers.image.description="A job-queue batch inference worker: enqueue in Redis, generate with Llama in torch, stream every token." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# A volume takes over the owner of its folder: for the gateway's files, and for what a GPU's worker compiles.
RUN useradd --uid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin herd && \
    install -d -o 10001 -g 10001 /files /cache
COPY --from=build /opt/herd /opt/herd
# Triton, which torch's CUDA build brings, compiles its launchers in C where they run. Python.h is there already.
# hadolint ignore=DL3008
RUN if [ -d "$(echo /opt/herd/lib/python3*/site-packages/triton)" ]; then \
      test -f "$(/opt/herd/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" && \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
# The root file system may be read-only: caches of CUDA and torch go where a tmpfs is mounted.
ENV PATH=/opt/herd/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 HERD_KERNELS_DIR=/opt/herd/kernels
WORKDIR /tmp
USER 10001:10001
# No HEALTHCHECK: what is healthy depends on the command. docker-compose.yml has that of each.
ENTRYPOINT ["herd"]
CMD ["worker"]
