# Image for a CPU; `docker compose --profile gpu up scanline-gpu` builds it for CUDA.
FROM python:3.12-slim AS build
ARG EXTRAS=""
# PyTorch's own index has builds without CUDA, which are several gigabytes smaller. Pass it here.
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /src
RUN python -m venv /opt/scanline
# Dependencies come first, because they change rarely and make the largest layer.
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
# g++ compiles the decoder for the machine's CPU when the server starts. KubeRay and the health check use
# wget. tini forwards signals from the first moment.
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
# SIGTERM drains: allow SCANLINE_DRAIN_SECONDS and a few seconds more (docker stop --time 40).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD wget -q -O /dev/null -T 2 -t 1 --no-proxy "http://localhost:${SCANLINE_PORT:-8000}/readyz"
ENTRYPOINT ["tini", "--"]
CMD ["scanline", "serve"]
