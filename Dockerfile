# Image for a CPU. `docker compose --profile gpu up scanline-gpu` builds it for CUDA.
FROM python:3.12.12-slim-trixie AS build
RUN pip install --no-cache-dir 'uv>=0.8.4,<1'
# Build of PyTorch as uv names it (`--torch-backend`). CPU builds are several gigabytes smaller than
# CUDA builds. If empty, PyTorch comes from the usual index, where it is the CUDA build.
ARG TORCH_BACKEND="cpu"
# Index that is searched before the usual one, such as a mirror.
ARG UV_INDEX=""
ARG EXTRAS=""
WORKDIR /src
RUN python -m venv --without-pip /opt/scanline
# Dependencies come first, because they change rarely and make the largest layer.
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [p['optional-dependencies'][name] for name in '$EXTRAS'.split(',') if name]; \
print(*sum(extras, p['dependencies']), sep='\n')" > requirements.txt \
    && uv pip install --no-cache --compile-bytecode --python /opt/scanline/bin/python \
        ${TORCH_BACKEND:+--torch-backend="$TORCH_BACKEND"} --requirement requirements.txt
COPY README.md LICENSE ./
COPY service service
COPY model model
COPY kernels kernels
COPY weights weights
RUN uv pip install --no-cache --compile-bytecode --python /opt/scanline/bin/python --no-deps .

FROM python:3.12.12-slim-trixie
# g++ compiles the decoder for the machine's CPU when the server starts. KubeRay and the health check use
# wget. tini forwards signals from the first moment.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini wget \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/scanline /opt/scanline
COPY --chmod=755 service/monitoring/healthcheck.sh /usr/local/bin/scanline-health
# Compiled code is kept in a folder of its own, because a user ID without an entry has no home. Some
# platforms choose such an ID; its group is 0. Login shells, such as KubeRay's `bash -lc`, reset PATH.
RUN useradd --create-home scanline \
    && install --directory --owner scanline --group 0 --mode 2775 /var/cache/scanline \
    && echo 'PATH=/opt/scanline/bin:$PATH' > /etc/profile.d/scanline.sh
USER scanline
WORKDIR /home/scanline
ENV PATH=/opt/scanline/bin:$PATH PYTHONUNBUFFERED=1 \
    SCANLINE_HOST=0.0.0.0,:: SCANLINE_LOG_FORMAT=json \
    SCANLINE_CACHE=/var/cache/scanline TRITON_CACHE_DIR=/var/cache/scanline/triton
EXPOSE 8000
# SIGTERM drains: allow SCANLINE_DRAIN_SECONDS and a few seconds more (docker stop --time 40).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["scanline-health"]
ENTRYPOINT ["tini", "--"]
CMD ["scanline", "serve"]
