# Image for a CPU. `docker compose --profile gpu up scanline-gpu` builds it for CUDA.
ARG PYTHON_IMAGE=python:3.12.12-slim-trixie
FROM ${PYTHON_IMAGE} AS python

# The C++ code for every instruction set of the architecture, so that the image needs no compiler.
FROM python AS native
RUN apt-get update && apt-get install --yes --no-install-recommends g++
WORKDIR /src
COPY kernels scanline/kernels
RUN python -m scanline.kernels.native.prebuild "$(uname -m)" /prebuilt

FROM python AS build
RUN pip install --no-cache-dir 'uv>=0.8.4,<1'
# Build of PyTorch as uv names it (`--torch-backend`). CPU builds are several gigabytes smaller than
# CUDA builds. If empty, PyTorch comes from the usual index, where it is the CUDA build.
ARG TORCH_BACKEND="cpu"
# Index that is searched before the usual one, such as a mirror.
ARG UV_INDEX=""
ARG EXTRAS=""
# Emulated builders are slow.
ENV UV_COMPILE_BYTECODE_TIMEOUT=600
WORKDIR /src
RUN python -m venv --without-pip /opt/scanline
# Dependencies come first, because they change rarely and make the largest layer. The lock file names
# their versions, and uv checks their hashes.
COPY pyproject.toml requirements.lock ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [p['optional-dependencies'][name] for name in '$EXTRAS'.split(',') if name]; \
print(*sum(extras, p['dependencies']), sep='\n')" > requirements.txt \
    && uv pip install --no-cache --compile-bytecode --python /opt/scanline/bin/python \
        ${TORCH_BACKEND:+--torch-backend="$TORCH_BACKEND"} --constraint requirements.lock \
        --requirement requirements.txt \
    && rm -rf /opt/scanline/lib/python3*/site-packages/torch/test \
        /opt/scanline/lib/python3*/site-packages/torch/bin/*[tT]est*
COPY README.md LICENSE setup.py ./
COPY service service
COPY model model
COPY kernels kernels
COPY weights weights
RUN uv pip install --no-cache --compile-bytecode --python /opt/scanline/bin/python --no-deps \
        --build-constraint requirements.lock .
COPY --from=native /prebuilt /prebuilt
RUN mv /prebuilt /opt/scanline/lib/python3*/site-packages/scanline/kernels/native/

FROM python
# KubeRay and the health check use wget. tini forwards signals from the first moment. PACKAGES are
# further packages of Debian: with CUDA, Triton needs a compiler (g++).
ARG PACKAGES=""
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini wget $PACKAGES \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/scanline /opt/scanline
COPY --chmod=755 service/monitoring/healthcheck.sh /usr/local/bin/scanline-health
# Caches, such as Triton's, are kept in a folder of their own, because a user ID without an entry has no
# home. Some platforms choose such an ID; its group is 0. Login shells, such as KubeRay's `bash -lc`,
# reset PATH.
RUN useradd --uid 1000 --create-home scanline \
    && install --directory --owner scanline --group 0 --mode 2775 /var/cache/scanline \
    && echo 'PATH=/opt/scanline/bin:$PATH' > /etc/profile.d/scanline.sh
# A number, from which Kubernetes' runAsNonRoot sees that it is not root.
USER 1000
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
