# For a CPU or, as docker compose --profile gpu up scanline-gpu runs it, for CUDA.
FROM python:3.12-slim AS build
ARG EXTRAS=""
# PyTorch's own index has builds without CUDA, several gigabytes smaller; pass it in here.
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /src
RUN python -m venv /opt/scanline
# Dependencies first: they change seldom, and this layer is the large one.
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [p['optional-dependencies'][name] for name in '$EXTRAS'.split(',') if name]; \
print(*sum(extras, p['dependencies']), sep='\n')" > requirements.txt \
    && /opt/scanline/bin/pip install --no-cache-dir --requirement requirements.txt
COPY README.md LICENSE ./
COPY service service
COPY model model
COPY kernels kernels
COPY weights weights
RUN /opt/scanline/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
# The decoder is compiled for the machine's own CPU (or GPU) when the server starts. KubeRay and the
# check below ask by wget how a container is. Signals reach a process of tini's from its first moment.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini wget \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/scanline /opt/scanline
RUN useradd --create-home scanline \
    && install --directory --owner scanline --group scanline /home/scanline/.cache
USER scanline
WORKDIR /home/scanline
ENV PATH=/opt/scanline/bin:$PATH PYTHONUNBUFFERED=1 \
    SCANLINE_HOST=0.0.0.0,:: SCANLINE_LOG_FORMAT=json \
    TRITON_CACHE_DIR=/home/scanline/.cache/triton
EXPOSE 8000
# SIGTERM drains; give it SCANLINE_DRAIN_SECONDS and a little more (docker stop --time 40).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD wget -q -O /dev/null -T 2 -t 1 --no-proxy "http://localhost:${SCANLINE_PORT:-8000}/readyz"
ENTRYPOINT ["tini", "--"]
CMD ["scanline", "serve"]
