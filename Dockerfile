# The service. GPU: --build-arg RUNTIME=gpu with a BASE that has Python 3.11 and the CUDA and cuDNN libraries which that
# onnxruntime-gpu asks for; TLP_DEVICE=cuda then serves on CUDA or does not start.
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG RUNTIME=cpu

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY client client
COPY service service
RUN pip install --no-cache-dir -c requirements/service.txt ".[service,${RUNTIME}]" \
    && useradd --create-home tlp \
    && install -d -m 700 -o tlp /data

USER tlp
ENV TLP_HOST=0.0.0.0 TLP_PORT=8000 TLP_DATA_DIR=/data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready')"]
ENTRYPOINT ["tlp", "serve"]
