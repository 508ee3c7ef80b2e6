#!/bin/bash
# Returns when Envoy may end without cutting anything: what Kubernetes runs before it sends SIGTERM.
# The administration listens on loopback alone, where the kubelet's own requests cannot reach it, and
# the image has no client for HTTP but bash.
set -eu
admin=${1-127.0.0.1:9901}
delay=${2-10} # seconds that balancers before Envoy have to notice

ask() {
    exec 3<>"/dev/tcp/${admin%:*}/${admin##*:}"
    printf '%s %s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3>&-
}

ask POST /healthcheck/fail >/dev/null # its /ready answers 503 from now on
sleep "$delay"
ask POST '/drain_listeners?graceful' >/dev/null
until ask GET '/stats?filter=^http.clients.downstream_rq_active$' | grep -q ': 0$'; do
    sleep 1
done
