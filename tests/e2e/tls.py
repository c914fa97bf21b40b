#!/usr/bin/env python3
"""Both servers over TLS, as processes: who is trusted, who is not, and certificates that are replaced."""
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import warnings

from checks import MODEL, at_least, run, same
from lib_servers import Server, complete


def certificate(folder, name):
    """A certificate that vouches for itself, and its key."""
    made = [os.path.join(folder, name + end) for end in (".pem", ".key")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-noenc", "-days", "36500", "-subj", "/CN=" + name,
                    "-addext", "subjectAltName=IP:127.0.0.1", "-out", made[0], "-keyout", made[1]],
                   check=True, capture_output=True)
    return made


def get(server, trusted, path):
    context = ssl.create_default_context(cafile=trusted)
    peer = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    peer.request("GET", path)
    answer = peer.getresponse()
    data = answer.read()
    peer.close()
    return answer.status, data


def refused(server, trusted):
    try:
        get(server, trusted, "/healthz")
    except ssl.SSLCertVerificationError:
        return True
    return False


def version_agreed(server, only):
    """What a client that offers nothing but this version of TLS gets; None: no connection, and the reason is the version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")  # else the client's own library refuses to offer an old one
    context.minimum_version = context.maximum_version = only
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        try:
            with context.wrap_socket(peer) as secure:
                return secure.version()
        except ssl.SSLError as e:
            same(f"the server's alert in {e}", "ALERT_PROTOCOL_VERSION" in str(e), True)
            return None


def tls_older_than_1_2_is_refused(binary, folder):
    cert, key = certificate(folder, "one")
    warnings.simplefilter("ignore", DeprecationWarning)
    with Server(binary, "cache", "--memory", "64MiB", "--tls-cert", cert, "--tls-key", key) as server:
        for version, name in ((ssl.TLSVersion.TLSv1, None), (ssl.TLSVersion.TLSv1_1, None), (ssl.TLSVersion.TLSv1_2, "TLSv1.2"),
                              (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            same(f"a client of {version.name}", version_agreed(server, version), name)
        page = get(server, cert, "/metrics")[1].decode()
        same("failed handshakes", "\ncokv_tls_failed_handshakes_total 2\n" in page, True)
        same("exit code", server.stop(), 0)


def a_cache_speaks_tls_alone_and_takes_a_new_certificate(binary, folder):
    first, second = certificate(folder, "first"), certificate(folder, "second")
    shown = [os.path.join(folder, "shown" + end) for end in (".pem", ".key")]

    def show(files):
        for source, at in zip(files, shown):
            shutil.copy(source, at + ".new")
            os.replace(at + ".new", at)

    show(first)
    with Server(binary, "cache", "--memory", "64MiB", "--tls-cert", shown[0], "--tls-key", shown[1]) as server:
        same("scheme", server.url.split(":")[0], "https")
        same("health", get(server, first[0], "/healthz"), (200, b"ok\n"))
        same("a stranger is refused", refused(server, second[0]), True)
        plain = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            plain.request("GET", "/healthz")
            plain.getresponse()
            raise AssertionError("plain HTTP was answered")
        except (OSError, http.client.HTTPException):
            pass
        show(second)
        server.process.send_signal(signal.SIGHUP)
        while refused(server, second[0]):  # a signal arrives when it does
            same("running", server.process.poll(), None)
        same("the old one", refused(server, first[0]), True)
        same("exit code", server.stop(), 0)


def a_model_keeps_its_kv_behind_https(binary, folder):
    cert, key = certificate(folder, "cache")
    other, _ = certificate(folder, "other")
    prompt = "In the beginning God created the heaven and the earth. " * 8
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("secret name=model\n")
    with Server(binary, "cache", "--memory", "64MiB", "--tls-cert", cert, "--tls-key", key, "--api-key-file", keys) as cache:
        def serve(trusted):
            return Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--kv-remote", cache.url, "--kv-remote-ca",
                          trusted, "--kv-remote-key-file", keys + ".one")

        with open(keys + ".one", "w") as file:
            file.write("secret\n")
        texts = []
        for _ in range(2):
            with serve(cert) as server:
                answer = complete(server.port, prompt, 16)
                texts.append(answer["text"])
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                same("exit code", server.stop(), 0)
        at_least("tokens from the cache", cached, 32)
        same("the same text", texts[0], texts[1])
        with serve(other) as server:  # it computes, and says why
            answer = complete(server.port, prompt, 16)
            same("text without the cache", answer["text"], texts[0])
            same("tokens from a cache that it does not trust", answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            same("exit code", server.stop(), 0)
        same("exit code", cache.stop(), 0)


def bad_files_are_one_line_and_exit_code_2(binary, folder):
    cert, key = certificate(folder, "one")
    _, other = certificate(folder, "two")
    for arguments in (("--tls-cert", cert), ("--tls-cert", cert, "--tls-key", other), ("--tls-cert", key, "--tls-key", key),
                      ("--tls-cert", cert, "--tls-key", os.path.join(folder, "none"))):
        done = subprocess.run([binary, "cache", "--listen", "127.0.0.1:0", *arguments], capture_output=True, text=True, timeout=60)
        same(f"exit code of {arguments}", done.returncode, 2)
        same(f"lines of {done.stderr!r}", done.stderr.count("\n"), 1)
        same("named", "--tls-" in done.stderr, True)


if not shutil.which("openssl"):
    print("0 passed, 0 failed, 1 skipped: there is no openssl to make certificates with")
else:
    run(tls_older_than_1_2_is_refused, a_cache_speaks_tls_alone_and_takes_a_new_certificate, a_model_keeps_its_kv_behind_https,
        bad_files_are_one_line_and_exit_code_2)
