# The gateway's image, and one with Spark for `gateway stream`.
#
#   docker build .                          the gateway: a Python, the core packages, nothing else
#   docker build --target auth .            the same with what `gateway auth` needs: password hashes, other users' stores
#   docker build --target stream .          the same with Java, pyspark, Spark's Kafka source and Delta Lake
#
# Without a network: put the wheels of requirements/build.txt, compile.txt and core.txt into deploy/wheelhouse/ and build
# the gateway with --build-arg PIP_NO_INDEX=1. BASE may be any Debian-like image with Python 3.11 or newer, its venv module
# and, to compile, its headers.
ARG BASE=docker.io/library/python:3.12-slim-bookworm


# Packages are gathered as wheels, every one checked against its locked hash; then the environment is made from those
# wheels alone (--no-index). Only the environment is copied on: no pip, no cache, no compiler.
#
# The gateway's own wheel has its data path compiled; --build-arg COMPILE=false leaves it in Python, and needs no compiler.
FROM ${BASE} AS packages
WORKDIR /build
ARG COMPILE=true
RUN if [ "$COMPILE" = true ] && ! command -v gcc; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
COPY requirements/build.txt requirements/compile.txt requirements/core.txt requirements/
COPY deploy/wheelhouse/ wheelhouse/
ARG PIP_NO_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=/build/wheelhouse PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --requirement requirements/build.txt \
    && if [ "$COMPILE" = true ]; then \
        /opt/build/bin/pip install --require-hashes --requirement requirements/compile.txt; fi \
    && /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir wheels \
        --requirement requirements/core.txt
RUN python3 -m venv --without-pip /opt/gateway \
    && /opt/build/bin/pip --python /opt/gateway/bin/python install --no-index --find-links wheels --no-deps \
        --require-hashes --requirement requirements/core.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY config/ config/
COPY bridge/ bridge/
COPY auth/ auth/
COPY streaming/ streaming/
COPY gateway/ gateway/
COPY docs/runbook.md docs/
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=$COMPILE \
    /opt/build/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir own . \
    && /opt/build/bin/pip --python /opt/gateway/bin/python install --no-index --no-deps own/*.whl
COPY deploy/healthcheck.py deploy/kubernetes/pre_stop.py /opt/gateway/


# Runs as a user without a shell and without rights; works with a read-only root file system. What must outlive the
# container (its identity, unsent messages) is in /var/lib/gateway, and nothing is written elsewhere.
FROM ${BASE} AS gateway
RUN groupadd --gid 10001 gateway \
    && useradd --uid 10001 --gid gateway --home-dir /var/lib/gateway --no-create-home --no-log-init \
        --shell /usr/sbin/nologin gateway \
    && install --directory --owner=gateway --group=gateway --mode=0750 /var/lib/gateway
COPY --from=packages /opt/gateway /opt/gateway
# Python's images come without the bytecode of its own library, and nobody may write it later: each start would compile.
RUN PYTHONDONTWRITEBYTECODE= /opt/gateway/bin/python3 -c \
    "import gateway.base.lean, gateway.cli.main, gateway.cli.service.run, gateway.worker.worker, gateway.supervisor.supervisor, gateway.supervisor.member, prometheus_client.exposition, encodings.utf_8_sig"
ENV PATH=/opt/gateway/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GATEWAY_CONFIG=/etc/gateway/gateway.toml \
    GATEWAY_DATA_DIR=/var/lib/gateway
WORKDIR /var/lib/gateway
VOLUME /var/lib/gateway
USER 10001:10001
EXPOSE 9464
# Alive, not ready: an orchestrator that restarts what is unhealthy must not do so because Kafka is away.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python3", "-I", "/opt/gateway/healthcheck.py", "/healthz"]
# Stopping drains, which takes up to shutdown_timeout (25 s): give `docker stop` longer than its own 10 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["gateway"]
CMD ["run"]


FROM packages AS auth-packages
COPY requirements/auth.txt requirements/
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --find-links wheels --wheel-dir wheels \
        --requirement requirements/auth.txt \
    && /opt/build/bin/pip --python /opt/gateway/bin/python install --no-index --find-links wheels --no-deps \
        --require-hashes --requirement requirements/auth.txt


# The service that EMQX asks who may connect, publish and subscribe.
FROM gateway AS auth
USER root
# Volumes that are mounted here begin with the owner and mode of these folders.
RUN for folder in service emqx gateway operator devices grafana; do \
        install --directory --owner=gateway --group=gateway --mode=0750 "/var/lib/gateway-auth/$folder"; \
    done
COPY --from=auth-packages /opt/gateway /opt/gateway
USER 10001:10001
EXPOSE 8085 9465
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python3", "-I", "/opt/gateway/healthcheck.py", "/healthz", "auth"]
CMD ["auth", "serve"]


FROM packages AS stream-packages
COPY requirements/streaming.txt requirements/
# Each package is checked against its hash as it comes. pyspark comes as source, and the wheel made of it has another:
# so the environment is made from all that is in the folder, not from the list.
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --find-links wheels --wheel-dir stream \
        --requirement requirements/streaming.txt \
    && /opt/build/bin/pip --python /opt/gateway/bin/python install --no-index --no-deps stream/*.whl


FROM gateway AS stream
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=stream-packages /opt/gateway /opt/gateway
COPY deploy/kubernetes/spark_executor.py /opt/gateway/
# Spark's Kafka source and Delta come from Maven and are checked against the sums in the package; baked in, so that the
# container starts without a network and with a read-only root. The class data beside them make each start shorter.
ENV XDG_CACHE_HOME=/opt/cache
RUN gateway stream prepare --config /dev/null && chmod -R a+rX /opt/cache
USER 10001:10001
HEALTHCHECK NONE
CMD ["stream", "all", "--jobs", "bronze,silver,gold"]


# What a plain `docker build .` makes.
FROM gateway
