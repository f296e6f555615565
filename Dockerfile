# A server on CPUs or NVIDIA GPUs; see docs/guides/deployment.md. tests/test_dockerfile.py runs its steps in a virtual
# environment. The image itself has not been built: no base image was available.
FROM python:3.12.12-slim-bookworm

# Triton compiles its kernels' launchers with a C compiler when a kernel first runs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The dependencies are a layer of their own: Docker takes it from its cache until one of these two files changes.
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        print(*project['dependencies'], *project['optional-dependencies']['serve'], sep='\n')" > requirements.txt \
    && pip install --no-cache-dir -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY gesso gesso
RUN pip install --no-cache-dir --no-deps . && rm -rf /src

# The home directory holds downloaded checkpoints and compiled kernels.
RUN useradd --create-home gesso
USER gesso
WORKDIR /home/gesso

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["gesso"]
CMD ["serve", "--host", "0.0.0.0"]
