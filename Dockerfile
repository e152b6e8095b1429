# One image for CPU and GPU workers: what differs is the torch that the build finds. See docs/docker.md.
# Its layers, from what changes seldom to what changes with each line: Python, torch, other packages, kernels, ours.

FROM python:3.11.14-slim-bookworm AS python
ENV PATH=/opt/herd/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
# A volume takes over the owner of its folder: for the gateway's files, and for what a GPU's worker compiles.
RUN python3 -m venv /opt/herd && \
    useradd --uid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin herd && \
    install -d -o 10001 -g 10001 /files /cache

FROM python AS packages
# Base of another wheel index for torch (PyTorch's own CPU or CUDA one); empty: what pip is set up to use.
ARG TORCH_INDEX_URL=
# torch first and alone: an extra index never sees the other names, and the big layer outlives changes of the others.
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=constraints.txt,target=/build/constraints.txt \
    pip install ${TORCH_INDEX_URL:+--retries 0 --timeout 5 --extra-index-url "$TORCH_INDEX_URL"} \
      -c /build/constraints.txt torch
# Triton, which torch's CUDA build brings, compiles its launchers in C where they run. Python.h is there already.
# hadolint ignore=DL3008
RUN if [ -d "$(echo /opt/herd/lib/python3*/site-packages/triton)" ]; then \
      test -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" && \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
# What pyproject.toml asks for, by a package of ours without code, which is taken away again.
WORKDIR /build/empty/src
WORKDIR /build/empty
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=constraints.txt,target=/build/constraints.txt \
    --mount=type=bind,source=pyproject.toml,target=/build/pyproject.toml \
    cp /build/pyproject.toml . && touch README.md LICENSE && \
    pip install -c /build/constraints.txt '.[worker,gateway]' && pip uninstall -y llama-herd && rm -r ./*

FROM python AS kernels
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY src/llama_herd/__init__.py src/llama_herd/error_code.py src/llama_herd/errors.py /build/llama_herd/
COPY src/llama_herd/model/__init__.py /build/llama_herd/model/
COPY src/llama_herd/model/kernels/__init__.py src/llama_herd/model/kernels/build.py \
     src/llama_herd/model/kernels/instruction_set.py src/llama_herd/model/kernels/trusted_folder.py \
     /build/llama_herd/model/kernels/
COPY src/llama_herd/model/kernels/native/ /build/llama_herd/model/kernels/native/
WORKDIR /out
# What was compiled of the same sources is found in the cache, though another of these files has changed.
# Without -p, by which cp 9.1 leaves the folder to root alone.
RUN --mount=type=cache,target=/kernels \
    PYTHONPATH=/build python -c "from pathlib import Path; from llama_herd.model.kernels.build import build; \
print(*(one.path for one in build(Path('/kernels'))))" | xargs cp --parents -t /out

FROM python AS wheel
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheel .

FROM packages
LABEL org.opencontainers.image.title="llama-herd" \
      org.opencontainers.image.description="A job-queue batch inference worker: enqueue in Redis, generate with Llama in torch, stream every token." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The root file system may be read-only: caches of CUDA and torch go where a tmpfs is mounted.
ENV HOME=/tmp PYTHONUNBUFFERED=1 HERD_KERNELS_DIR=/opt/herd/kernels
WORKDIR /tmp
COPY --from=kernels /out/kernels /opt/herd/kernels
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install --no-cache-dir --no-deps --no-index /wheel/*.whl
USER 10001:10001
# No HEALTHCHECK: what is healthy depends on the command. docker-compose.yml has that of each.
ENTRYPOINT ["herd"]
CMD ["worker"]
