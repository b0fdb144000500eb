# An image with this project installed. docs/cluster/from_one_machine.md uses it with Docker and on Kubernetes.
#
#   docker build -t scalable-agents .
#   docker build -t scalable-agents --build-arg GPU=1 .    # With CUDA's libraries, 3 GB more.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /source
# Before the code, so that the requirements are not installed again when the code has changed.
COPY requirements.txt requirements-gpu.txt ./
ARG GPU=
RUN pip install --no-cache-dir setuptools==80.10.2 --requirement requirements.txt ${GPU:+--requirement requirements-gpu.txt}
COPY . .
RUN pip install --no-cache-dir --no-build-isolation --no-deps .

# Without the compiler and the sources.
FROM python:3.11-slim-bookworm
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
# The default run directory, runs/LEVEL_NAME in the current folder, is then in /runs.
WORKDIR /
ENTRYPOINT ["scalable-agents"]
