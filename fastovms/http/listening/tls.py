"""Keeps the certificate of TLS listeners, and reads it anew on demand."""

from __future__ import annotations

import ssl

from fastovms.errors import ConfigurationError

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a handshake may take."""
SHUTDOWN_TIMEOUT = 3600.0
"""Seconds that the end of a TLS connection may take, the last answer included, for which `Wire` has
a nearer deadline."""


class TlsCredentials:
    """A certificate chain and its key, and the context that serves them.

    Args:
        certificate: path of a PEM file with the chain.
        key: path of a PEM file with the key; None = it is in the certificate's file.

    Raises:
        ConfigurationError: a file cannot be read, or they do not belong together.
    """

    def __init__(self, certificate: str, key: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self.context = self._new_context()

    def reload(self) -> None:
        """Reads the files again, for connections made from now on.

        Raises:
            ConfigurationError: they cannot be used; the old ones stay in use.
        """
        self._new_context()  # a failed load would leave the live context without a usable key
        self._load(self.context)

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # An encrypted key would otherwise ask for its passphrase on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except OSError as error:  # ssl.SSLError is one too
            files = self._certificate if self._key is None else f"{self._certificate}, {self._key}"
            reason = error.strerror or str(error)
            raise ConfigurationError(f"cannot use the TLS files {files}: {reason}") from None
