# An image with this project installed. docs/cluster/from_one_machine.md uses it with Docker and on Kubernetes.
#
#   docker build -t scalable-agents .
#   docker build -t scalable-agents --build-arg GPU=1 .    # With CUDA's libraries, 3 GB more. GPU=0 leaves them out.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /source
# The requirements come before the code, so that they are not installed again when only the code has changed.
COPY requirements.txt requirements-gpu.txt ./
ARG GPU=0
RUN pip install --no-cache-dir setuptools==80.10.2 --requirement requirements.txt \
  $(test "${GPU:-0}" = 0 || echo --requirement requirements-gpu.txt)
COPY . .
RUN pip install --no-cache-dir --no-build-isolation --no-deps .

# The final image has neither the compiler nor the sources.
FROM python:3.11-slim-bookworm
# Process 1 of a container ignores signals that it has no handler for. tini takes its place and passes signals on, so
# that `docker stop` ends the program at any time.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
# The default run directory is runs/LEVEL_NAME in the current folder, which is then /runs/LEVEL_NAME.
WORKDIR /
ENTRYPOINT ["tini", "--", "scalable-agents"]
