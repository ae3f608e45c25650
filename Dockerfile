# Images of tidelog: `server` (the default) and `pipeline`, which adds Spark and its JVM.
#   docker build -t tidelog .
#   docker build -t tidelog-pipeline --target pipeline .
# Nothing here has secrets of its own: without TIDELOG_ADMIN_TOKEN and TIDELOG_APP_SECRET the server
# exits and says how to set them. compose.yaml shows both images beside PostgreSQL.
# tests/packaging/test_deploy.py reads this file and runs the commands that need no container; the
# images themselves are not built by any test.

FROM python:3.11-slim AS build
WORKDIR /project
COPY requirements.lock ./
RUN python -m venv /tools \
 && /tools/bin/pip install --no-cache-dir "$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.lock)"
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /tools/bin/uv venv /opt/tidelog \
 && /tools/bin/uv pip install --no-cache --python /opt/tidelog/bin/python \
    --constraint requirements.lock ".[postgresql]"

FROM build AS build-pipeline
RUN /tools/bin/uv pip install --no-cache --python /opt/tidelog/bin/python \
    --constraint requirements.lock ".[postgresql,pipeline]"

FROM python:3.11-slim AS base
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/tidelog tidelog \
 && install --directory --owner tidelog --group tidelog --mode 0700 /var/lib/tidelog
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDELOG_DATA_DIR=/var/lib/tidelog \
    TIDELOG_HOST=0.0.0.0 \
    TIDELOG_LOG_FORMAT=json \
    TIDELOG_PORT=8080
USER 10001:10001
WORKDIR /var/lib/tidelog
VOLUME /var/lib/tidelog
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidelog"]

FROM base AS pipeline
COPY --from=build-pipeline /opt/tidelog /opt/tidelog
CMD ["pipeline", "run"]

# The last stage is what `docker build .` makes.
FROM base AS server
COPY --from=build /opt/tidelog /opt/tidelog
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
CMD ["serve"]
