"""Images of other servers: which addresses are connected to, and the limits on time, size and redirects."""

import ipaddress
import socket
import ssl
from collections.abc import Iterator

import pytest

from gesso.errors import InputError
from gesso.serve import remote_images
from gesso.serve.public_addresses import is_public
from gesso.serve.remote_images import RemoteImage, fetch, fetch_all
from tests.images.server import PictureServer, serving

FILE = b"\x89PNG and so on" * 1000

PUBLIC = (
    "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2001:4860:4860::8888", "64:ff9b::808:808", "2002:808:808::1",
    # neighbours of ranges that are not public
    "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255",
    "192.0.1.0", "192.88.98.255", "192.88.100.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
    "2001:200::", "2001:db7:ffff::", "2001:db9::", "3ffe:ffff::1", "3fff:1000::",
)  # fmt: skip
NOT_PUBLIC = (
    # this machine and its network
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
    "100.100.100.200", "169.254.169.254", "192.0.0.1", "192.0.0.9", "192.0.0.170",
    "192.0.0.255", "198.18.0.1", "198.19.255.255", "168.63.129.16",
    # of no single machine, or of none
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.1", "203.0.113.7",
    "192.31.196.1", "192.52.193.1", "192.88.99.0", "192.88.99.2", "192.88.99.255", "192.175.48.1",
    "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1", "5f00::1",
    "3fff::", "3fff:fff:ffff::1", "2001:2::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1",
    "2001:1::1", "2620:4f:8000::1", "4000::1",
    # IPv4 addresses within IPv6 addresses
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1", "2001:0:808:808::1",
    "::ffff:0:7f00:1", "64:ff9b::c000:9", "64:ff9b::c058:6301", "2002:c058:6301::1", "2002:c000:9::",
    "2002:a83f:8110::",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_of_this_machine_its_network_or_nobody_are_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "017700000001", "[::1]", "[::ffff:127.0.0.1]", "0", "a.invalid"),
)  # fmt: skip
def test_names_of_this_machine_are_refused_like_unknown_names(host):
    with pytest.raises(InputError, match=r"no public address is known for .*; private addresses are not allowed"):
        fetch(f"http://{host}/image.png")


REFUSED = {
    "ftp://example.com/a.png": "expected a URL like https://host/image.png",
    "http:///a.png": "expected a URL like",
    "https://user:secret@example.com/a.png": "a user name or a password",
    "https://@example.com/a.png": "a user name or a password",
    "http://example.com:22/a.png": "port 22 is not allowed",
    "http://example.com:443/a.png": "port 443 is not allowed; images are fetched from the usual port of http",
    "http://example.com:99999/": "the URL cannot be read",
    "http://[example.com/": "the URL cannot be read",
    "http://example.com/" + "a" * 5000: "more than 4,096 characters",
}


@pytest.mark.parametrize("url", REFUSED)
def test_other_urls_are_refused_without_a_connection(url):
    """For a host that was looked up, the reason would be that it has no public address."""
    with pytest.raises(InputError) as refused:
        fetch(url)
    assert REFUSED[url] in str(refused.value) and "secret" not in str(refused.value)


# --- a server ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[PictureServer]:
    with serving(FILE) as server:
        yield server


@pytest.fixture
def url(other, monkeypatch) -> str:
    """The address of the other server, under a name and as if it were public."""
    port = other.port
    monkeypatch.setattr(remote_images, "PORTS", {"http": (80, port), "https": (443, port)})
    checked = remote_images.is_public
    monkeypatch.setattr(remote_images, "is_public", lambda address: str(address) == "127.0.0.1" or checked(address))
    return f"http://localhost:{port}"


def test_a_file_is_fetched_without_credentials_cookies_or_proxies(other, url, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch(f"{url}/file/a b.png?q=ä#part") == FILE
    (path, headers), port = other.asked[0], other.port
    assert path == "/file/a%20b.png?q=%C3%A4"
    assert set(headers) == {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}
    assert (headers["Host"], headers["Accept-Encoding"]) == (f"localhost:{port}", "identity")


def test_the_connection_goes_to_the_address_that_was_checked(other, url, monkeypatch):
    """A name that resolves to a private address the second time (DNS rebinding) is resolved only once. Of several
    addresses of a name, only the public one is connected to."""
    names, resolve, port = [], socket.getaddrinfo, other.port

    def rebinding(host: str, port: int, **options: object) -> object:
        names.append(host)
        addresses = ("127.0.0.2", "127.0.0.1") if len(names) == 1 else ("127.0.0.2",)
        return [found for address in addresses for found in resolve(address, port, **options)]  # type: ignore[arg-type]

    # Nothing else can resolve a made-up name to an address of this machine.
    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with socket.create_server(("127.0.0.2", port)) as private:
        assert fetch(f"http://pictures.example:{port}/file") == FILE
        private.settimeout(0.01)
        with pytest.raises(TimeoutError):
            private.accept()
    assert names == ["pictures.example"] and other.asked[0][1]["Host"] == f"pictures.example:{port}"


def test_redirects_are_followed_and_limited(other, url):
    assert fetch(f"{url}/again/2") == FILE
    with pytest.raises(InputError, match="more than 3 redirects"):
        fetch(f"{url}/again/9")
    assert len(other.asked) == 4 + 4


@pytest.mark.parametrize(
    "target", ("http://127.0.0.2/", "http://[::1]/", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd",
               "http://user@localhost/", "http://localhost:22/", "//10.0.0.1/x")
)  # fmt: skip
def test_every_target_of_a_redirect_is_checked(other, url, target):
    with pytest.raises(InputError, match="no public address|expected a URL|a user name|port 22"):
        fetch(f"{url}/moved/{target}")
    assert len(other.asked) == 1


ANSWERS = {
    "missing": "answered with status 404, expected 200",
    "cut": "the connection ended before the whole file had arrived",
    "packed": "compressed its answer",
    "endless": "the file has more than 20,000,000 bytes",
}


@pytest.mark.parametrize("path", ANSWERS)
def test_other_answers_are_refused(url, path):
    with pytest.raises(InputError) as refused:
        fetch(f"{url}/{path}")
    assert ANSWERS[path] in str(refused.value) and "secret" not in str(refused.value)


def test_all_files_together_are_limited_and_errors_name_the_field(url):
    images = [RemoteImage(f"{url}/file", f"images[{index}]") for index in range(3)]
    assert fetch_all(images, 3 * len(FILE)) == [FILE] * 3
    with pytest.raises(InputError, match=r"^images\[2\]: the images have more than .* bytes together"):
        fetch_all(images, 3 * len(FILE) - 1)
    with pytest.raises(InputError, match=r"^images\[0\]: port 22 is not allowed"):
        fetch_all([RemoteImage("http://localhost:22/", "images[0]")], 100)


def test_a_certificate_that_is_not_the_hosts_is_refused(other, url):
    """The other server speaks no TLS. Certificates are checked as the standard library does."""
    port = other.port
    with pytest.raises(InputError, match="no secure connection to 'localhost'"):
        fetch(f"https://localhost:{port}/file")
    context = remote_images._tls()
    assert context.check_hostname and context.verify_mode == ssl.CERT_REQUIRED


def test_a_redirect_never_leaves_https(monkeypatch):
    class Moved:
        status, headers = 302, {"Location": "http://example.com/a.png"}

        def __enter__(self) -> "Moved":
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(remote_images, "_answer", lambda parts: Moved())
    with pytest.raises(InputError, match="redirects from https to another scheme"):
        fetch("https://example.com/b.png")
