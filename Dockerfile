# The image of the server, for x86-64. From the top of a clone:
#
#     podman build -t fastovms:0.2.0 .          (or docker build)
#
# Without a registry to take the base from, deploy/image.sh makes that of Debian packages first.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
COPY deploy/requirements.lock /build/
# The environment holds no pip: another one installs into it.
RUN python3 -m venv /build/tools && python3 -m venv --without-pip /opt/fastovms \
    && /build/tools/bin/pip --python /opt/fastovms/bin/python3 install --no-cache-dir --no-compile \
        --require-hashes --only-binary :all: -r /build/requirements.lock
COPY pyproject.toml setup.cfg README.md LICENSE /build/fastovms/
COPY fastovms /build/fastovms/fastovms
RUN /build/tools/bin/pip --python /opt/fastovms/bin/python3 install --no-cache-dir --no-compile \
        --no-deps /build/fastovms \
    && find /opt/fastovms -name tests -type d -path '*/site-packages/*' -prune -exec rm -rf {} + \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/fastovms/lib

FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends python3 ca-certificates \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY --from=build /opt/fastovms /opt/fastovms
# A number, so that Kubernetes can tell that it is not root. Nothing in the image is this user's but
# these directories, which may be volumes.
RUN install -d -o 10001 -g 10001 /var/cache/fastovms /var/lib/fastovms /models
ENV PATH=/opt/fastovms/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/fastovms \
    XDG_CACHE_HOME=/var/cache/fastovms \
    XDG_STATE_HOME=/var/lib/fastovms \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/fastovms
VOLUME ["/var/cache/fastovms", "/var/lib/fastovms"]
EXPOSE 8000
STOPSIGNAL SIGTERM
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="fastovms" \
      org.opencontainers.image.description="OpenAI-compatible LLM server for OpenVINO models, made for Intel CPUs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# No HEALTHCHECK: Kubernetes has probes, compose.yaml has one, and podman and Docker take --health-cmd.
ENTRYPOINT ["fastovms"]
CMD ["serve", "--host", "0.0.0.0"]
