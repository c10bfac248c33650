import pytest

from kvfence.core.errors import SettingsError
from kvfence.gateway.probe import PROBE_TENANT
from kvfence.gateway.quotas import Allowance
from kvfence.gateway.registry import (
    LOCAL,
    UNAUTHORIZED,
    KeyRegistry,
    describe_exposure,
    is_loopback,
    load_keys,
    require_keys_or_loopback,
)


def write(path, text):
    """Write a file and give its path."""
    path.write_text(text)
    return path


def test_keys_name_their_tenant(tmp_path):
    """Several keys may name one tenant; comments and empty lines are skipped."""
    registry = load_keys(write(tmp_path / "keys", "# ours\n\nsk-one acme\nsk-two acme\n  sk-three   other  \n"))
    assert registry.tenant_of("Bearer sk-one") == "acme"
    assert registry.tenant_of("bearer sk-two") == "acme"
    assert registry.tenants == {"acme", "other"}


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer sk-on", "Bearer sk-one2", "Basic sk-one", "sk-one"]
)
def test_every_other_header_is_refused(tmp_path, header):
    """Only the whole key after Bearer names a tenant."""
    registry = load_keys(write(tmp_path / "keys", "sk-one acme\n"))
    assert registry.tenant_of(header) == UNAUTHORIZED


def test_without_keys_everyone_is_local():
    """A server without keys has one tenant."""
    assert KeyRegistry().tenant_of("") == LOCAL
    assert KeyRegistry().open


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sk-one acme\nsk-two\n", "line 2: 1 words"),
        ("sk-one acme inc\n", "line 1: 3 words"),
        ("sk-one acme\n\nsk-one other\n", "line 3: the same key as line 1"),
        ("# nothing\n", "holds no key"),
    ],
)
def test_a_wrong_key_file_names_the_line_and_no_key(tmp_path, text, says):
    """The message names the file and line, never a key."""
    with pytest.raises(SettingsError) as caught:
        load_keys(write(tmp_path / "keys", text))
    assert says in str(caught.value)
    assert "sk-" not in str(caught.value)


def test_a_key_file_that_cannot_be_read_says_so(tmp_path):
    """A missing file, a folder and binary data are each a settings error with the path."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", ".", "binary"):
        with pytest.raises(SettingsError, match="cannot be read"):
            load_keys(tmp_path / name)


def test_a_readable_key_file_is_pointed_out(tmp_path):
    """A key file that others can read gets a hint with the command that closes it."""
    path = write(tmp_path / "keys", "sk-one acme\n")
    path.chmod(0o644)
    assert "chmod 600" in (describe_exposure(path) or "")
    path.chmod(0o600)
    assert describe_exposure(path) is None


def test_other_machines_need_keys(tmp_path):
    """Without keys only loopback is served; with keys any host."""
    for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"):
        assert is_loopback(host)
        require_keys_or_loopback(host, KeyRegistry())
    for host in ("0.0.0.0", "192.168.1.4", "::", "example.org"):
        with pytest.raises(SettingsError, match="--api-keys"):
            require_keys_or_loopback(host, KeyRegistry())
        require_keys_or_loopback(host, load_keys(write(tmp_path / "keys", "sk-one acme\n")))


def test_an_operators_key_is_no_tenants(tmp_path):
    """It may see the fence and names nobody; a tenant's key may not; names with @ are kept for such words."""
    registry = load_keys(write(tmp_path / "keys", "sk-one acme\nsk-ops @operator\n"))
    assert registry.is_operator("Bearer sk-ops")
    assert not registry.is_operator("Bearer sk-one")
    assert registry.tenant_of("Bearer sk-ops") == UNAUTHORIZED
    assert registry.tenants == {"acme"}
    with pytest.raises(SettingsError, match="does not begin with @"):
        load_keys(write(tmp_path / "keys", "sk-one @admin\n"))
    with pytest.raises(SettingsError, match="holds no key of a tenant"):
        load_keys(write(tmp_path / "keys", "sk-ops @operator\n"))


@pytest.mark.parametrize("name", [PROBE_TENANT, "@other"])
def test_no_key_names_one_of_the_servers_own_tenants(tmp_path, name):
    """Whoever could be taken for the server's probe would share its pages and its place on the fence."""
    with pytest.raises(SettingsError, match="does not begin with @"):
        load_keys(write(tmp_path / "keys", f"sk-one acme\nsk-two {name}\n"))


def test_a_key_line_may_bound_its_tenant(tmp_path):
    """Bounds behind the tenant hold for it, what they leave open is the default's; other tenants have the default."""
    registry = load_keys(
        write(tmp_path / "keys", "a acme requests=3 tokens_per_minute=900\nb acme\nc calm requests=1\nd x\n")
    )
    own = registry.allowances(Allowance(7, 50))
    assert own == {"acme": Allowance(3, 900), "calm": Allowance(1, 50)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a acme requests", "line 1: 3 words"),
        ("a acme requests=-1", "line 1: 3 words"),
        ("a acme requests=1 requests=2", "line 1: 4 words"),
        ("a acme speed=1", "line 1: 3 words"),
        ("a acme requests=\u0663", "line 1: 3 words"),
        ("a acme requests=1\nb acme requests=2", "line 2: another bound"),
    ],
)
def test_wrong_bounds_are_named_by_line(tmp_path, text, says):
    """A bound that is no bound, or two that differ for one tenant, is a settings error without the key."""
    with pytest.raises(SettingsError, match=says):
        load_keys(write(tmp_path / "keys", text))
