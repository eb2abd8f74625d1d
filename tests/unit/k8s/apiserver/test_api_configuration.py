"""Which cluster a kubeconfig or a service account names, and what is wrong with others."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cgpu_k8s.apiserver import credential_plugin as plugin
from cgpu_k8s.apiserver.cluster import Certificate, Cluster, describe_expiry
from cgpu_k8s.apiserver.configuration import load_cluster
from cgpu_k8s.apiserver.errors import ConfigurationError

pytestmark = pytest.mark.unit

PLUGIN = "client.authentication.k8s.io/v1"


def content(user: dict[str, Any] | None = None, **cluster: object) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    }


def written(path: Path, what: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(what))
    return str(path)


def loaded(tmp_path: Path, what: dict[str, Any], context: str | None = None) -> Cluster:
    return load_cluster(written(tmp_path / "config", what), context, environment={})


def headers(cluster: Cluster) -> dict[str, str]:
    return asyncio.run(cluster.credentials.get_current()).headers


def refused(tmp_path: Path, what: dict[str, Any], context: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as error:
        asyncio.run(loaded(tmp_path, what, context).credentials.get_current())
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def token_until(moment: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": moment}).encode()).decode().rstrip("=")
    return f"h.{claims}.s"


def test_a_token(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, content({"token": "secret"}))
    assert cluster.server == "https://127.0.0.1:6443"
    assert headers(cluster) == {"Authorization": "Bearer secret"}
    assert cluster.namespace == "default"
    assert cluster.origin == f'context "lab" of {tmp_path / "config"}'


def test_a_password(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, content({"username": "a", "password": "b"}))
    assert headers(cluster) == {"Authorization": f"Basic {base64_of('a:b')}"}


def test_a_certificate_as_data_and_an_authority_as_a_file_beside_the_kubeconfig(
    tmp_path: Path,
) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    user = {"client-certificate-data": base64_of("chain"), "client-key-data": base64_of("key")}
    cluster = loaded(tmp_path, content(user, **{"certificate-authority": "ca.pem"}))
    credential = asyncio.run(cluster.credentials.get_current())
    assert credential.certificate == Certificate("chain", "key")
    assert cluster.trust.authorities == "authority"


def test_a_token_in_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    cluster = loaded(tmp_path, content({"tokenFile": "token"}))
    assert headers(cluster)["Authorization"] == "Bearer one"
    assert not cluster.credentials.renew()
    file.write_text("two\n")
    assert cluster.credentials.renew()
    assert headers(cluster)["Authorization"] == "Bearer two"


def test_of_several_files_the_first_that_has_a_name_wins(tmp_path: Path) -> None:
    first = {"contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}]}
    first |= {"users": [{"name": "u", "user": {"token": "first"}}]}
    names = [written(tmp_path / "a", first), written(tmp_path / "b", content({"token": "second"}))]
    missing = str(tmp_path / "missing")
    cluster = load_cluster(environment={"KUBECONFIG": ":".join([*names[:1], missing, *names[1:]])})
    assert headers(cluster)["Authorization"] == "Bearer first"


def test_the_home_directory_has_the_usual_file(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube" / "config", content({"token": "t"}))
    assert load_cluster(environment={"HOME": str(tmp_path)}).server == "https://127.0.0.1:6443"


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(f"{name}\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    cluster = load_cluster(environment={**environment, "HOME": str(tmp_path)}, account=tmp_path)
    assert cluster.server == "https://[fd00::1]:6443"
    assert cluster.namespace == "namespace"
    assert cluster.trust.authorities == "ca.crt\n"
    assert headers(cluster) == {"Authorization": "Bearer token"}
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigurationError, match=r"token is empty: it must be one line"):
        headers(cluster)


def test_a_token_says_when_it_expired() -> None:
    credential = plugin.make_bearer(token_until(86400.0))
    assert describe_expiry(credential) == "the token expired at 1970-01-02 00:00:00 UTC"
    assert not describe_expiry(plugin.make_bearer(token_until(time.time() + 60)))
    assert not describe_expiry(plugin.make_bearer("a.b.c"))


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/no does not exist"):
        load_cluster(str(tmp_path / "no"), environment={"KUBERNETES_SERVICE_HOST": "h"})
    with pytest.raises(ConfigurationError, match=r"/a and /b do not exist"):
        load_cluster(environment={"KUBECONFIG": "/a:/b"})


def test_a_kubeconfig_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.mkdir()
    with pytest.raises(ConfigurationError, match=r"config cannot be read: Is a directory"):
        load_cluster(str(path), environment={})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: [", r"is not YAML in line \d: "),
        ("- a", "must be a mapping"),
        ("clusters: [{}]", "clusters must be a list of entries with names"),
        ("users: 3", "users must be a list of entries with names"),
        ("", "has no current-context"),
    ],
)
def test_a_kubeconfig_that_is_none(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=wrong):
        load_cluster(str(path), environment={}).credentials.renew()


def test_an_unknown_context_lists_those_that_are_there(tmp_path: Path) -> None:
    assert 'has no context "other": it has lab' in refused(tmp_path, content(), "other")
    with pytest.raises(ConfigurationError) as error:
        loaded(tmp_path, content(), "lob")
    assert error.value.hint == 'did you mean "lab"?'


def test_a_context_of_a_cluster_or_user_that_is_not_there(tmp_path: Path) -> None:
    what = content()
    what["clusters"] = []
    assert 'has no cluster "c": it has none' in refused(tmp_path, what)
    what = content()
    what["users"][0]["name"] = "other"
    assert 'has no user "u": it has other' in refused(tmp_path, what)


@pytest.mark.parametrize(
    ("user", "cluster", "wrong"),
    [
        *(
            ({}, {"server": server}, "has server=.*: it must be an address such as https://HOST")
            for server in ("", "host:6443", "https://", "https://[::1", "http://h:x", "ftp://h")
        ),
        *(
            ({}, {"server": f"http://{host}"}, "it must be an")
            for host in ("a b", "h:99999", "h\n", "u:p@h")
        ),
        *(
            ({}, {"proxy-url": proxy}, f"has proxy-url={proxy}: it must be an address such as http")
            for proxy in ("host:3128", "socks5://h:1")
        ),
        ({1: 2, "as-uid": "3"}, {}, "impersonates another user"),
        ({"auth-provider": {"name": "x"}}, {}, "auth-provider, which Kubernetes removed"),
        ({"as": "root"}, {}, "impersonates another user"),
        ({"client-certificate-data": base64_of("c")}, {}, "certificate without its key"),
        ({"client-key-data": "%"}, {}, "client-key-data of .* is not base64 of PEM"),
        ({}, {"certificate-authority": "/no"}, "/no cannot be read: No such file"),
        ({"tokenFile": "/no"}, {}, "token in /no cannot be read"),
        ({"exec": {"apiVersion": PLUGIN}}, {}, "exec plug-in without a command"),
        ({"exec": {"command": "x"}}, {}, "of apiVersion '': it must be"),
        *(
            ({"exec": {"command": "x", "apiVersion": PLUGIN, **more}}, {}, "no list of words, or")
            for more in ({"args": "word"}, {"env": 3}, {"env": [3]})
        ),
        ({"exec": {"command": "a\0b", "apiVersion": PLUGIN}}, {}, "cannot be started: embedded"),
    ],
)
def test_an_entry_that_cannot_be_used(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], wrong: str
) -> None:
    assert re.search(wrong, refused(tmp_path, content(user, **cluster)))


def test_an_address_has_no_slash_at_the_end_and_may_go_through_a_proxy(tmp_path: Path) -> None:
    address = "http://h:1/k8s/clusters/c-1"
    proxies: dict[str | None, str] = {"http://h:3128/": "http://h:3128", None: "", "": ""}
    for given, proxy in proxies.items():
        cluster = loaded(tmp_path, content(server=f"{address}/", **{"proxy-url": given}))
        assert (cluster.server, cluster.proxy) == (address, proxy)


def test_an_authority_that_is_no_certificate(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, content(**{"certificate-authority-data": base64_of("no")}))
    with pytest.raises(ConfigurationError, match=r"certificate authority of context .* not PEM"):
        cluster.trust.make_context(None)
    with pytest.raises(ConfigurationError, match=r"client certificate of context .* do not fit"):
        loaded(tmp_path, content()).trust.make_context(Certificate("no", "no"))


def test_an_authority_needs_no_key_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As EKS's has none, which Python refuses by default from 3.13 on."""
    strict = ssl.create_default_context()
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: strict)
    context = loaded(tmp_path, content()).trust.make_context(None)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


def program(tmp_path: Path, answer: object, **more: object) -> dict[str, Any]:
    """A user whose plug-in counts its starts, and prints ``answer``."""
    path = tmp_path / "plugin"
    (tmp_path / "answer").write_text(answer if isinstance(answer, str) else json.dumps(answer))
    path.write_text(
        f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >>{tmp_path}/started\n'
        f'[ "$1" = get ] && [ "$KEY" = value ] && cat {tmp_path}/answer\n'
    )
    path.chmod(0o755)
    return {
        "exec": {
            "apiVersion": PLUGIN,
            "command": "./plugin",
            "args": ["get"],
            "env": [{"name": "KEY", "value": "value"}],
            **more,
        }
    }


def answered(**status: object) -> dict[str, Any]:
    return {"apiVersion": PLUGIN, "kind": "ExecCredential", "status": status}


def starts(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "started").read_text().splitlines()]


def test_a_plugin_is_started_once_until_its_credential_is_refused(tmp_path: Path) -> None:
    until = "2999-01-01T00:00:00Z"
    user = program(tmp_path, answered(token="t", expirationTimestamp=until))
    cluster = loaded(tmp_path, content(user))

    async def twice() -> list[dict[str, str]]:
        found = await asyncio.gather(*(cluster.credentials.get_current() for _ in range(2)))
        return [each.headers for each in found]

    assert asyncio.run(twice()) == [{"Authorization": "Bearer t"}] * 2
    assert len(starts(tmp_path)) == 1
    assert cluster.credentials.renew()
    assert headers(cluster) == {"Authorization": "Bearer t"}
    assert len(starts(tmp_path)) == 2


def test_a_plugin_is_started_again_when_its_credential_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = program(tmp_path, answered(token="t", expirationTimestamp="2999-01-01T00:00:00Z"))
    cluster = loaded(tmp_path, content(user))
    headers(cluster)
    monkeypatch.setattr(plugin.ExecPlugin, "_is_expired", lambda _, early=None: early is not None)
    headers(cluster)
    assert len(starts(tmp_path)) == 2


def test_whether_a_credential_has_expired_is_the_api_servers_to_say(tmp_path: Path) -> None:
    """Our clock may be an hour ahead; the next request starts the plug-in again."""
    user = program(tmp_path, answered(token="t", expirationTimestamp="2001-01-01T00:00:00Z"))
    cluster = loaded(tmp_path, content(user))
    assert [headers(cluster), headers(cluster)] == [{"Authorization": "Bearer t"}] * 2
    assert len(starts(tmp_path)) == 2
    assert cluster.credentials.find_problem().endswith(
        "gives a credential that expired at 2001-01-01 00:00:00 UTC, by this machine's clock"
    )


def test_a_plugin_learns_of_the_cluster_if_it_wants_to(tmp_path: Path) -> None:
    pair = {"clientCertificateData": "c", "clientKeyData": "k"}
    user = program(tmp_path, answered(**pair), provideClusterInfo=True)
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    authority = base64_of("authority")
    what = content(user, **{"certificate-authority-data": authority, "extensions": [extension]})
    credential = asyncio.run(loaded(tmp_path, what).credentials.get_current())
    assert credential.certificate == Certificate("c", "k")
    [known] = starts(tmp_path)
    assert known["spec"]["cluster"] == {
        "server": "https://127.0.0.1:6443/",
        "certificate-authority-data": authority,
        "config": {"audience": "x"},
    }


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("no", "prints what is not an ExecCredential"),
        ([], "prints what is not an ExecCredential"),
        (answered(), "prints neither a token nor a certificate"),
        ({**answered(token="t"), "apiVersion": "v0"}, "prints ExecCredential of v0: it must be"),
        (answered(token="t", expirationTimestamp="never"), "prints what is not"),
    ],
)
def test_a_plugin_whose_answer_cannot_be_used(tmp_path: Path, answer: object, wrong: str) -> None:
    sentence = refused(tmp_path, content(program(tmp_path, answer)))
    assert f"exec plug-in {tmp_path}/plugin of context" in sentence
    assert wrong in sentence


def test_a_plugin_that_fails_or_is_missing(tmp_path: Path) -> None:
    user = program(tmp_path, "", args=["other"])
    assert "fails with status 1: it does not say why" in refused(tmp_path, content(user))
    user = {"exec": {"apiVersion": PLUGIN, "command": "no-such-program", "installHint": "get\nit"}}
    with pytest.raises(ConfigurationError) as error:
        headers(loaded(tmp_path, content(user)))
    assert "cannot be started: No such file or directory" in str(error.value)
    assert error.value.hint == "get it"


def test_a_plugin_that_fails_is_started_once_for_all_who_wait(tmp_path: Path) -> None:
    """And it leaves nothing that the end of the event loop waits for."""
    cluster = loaded(tmp_path, content(program(tmp_path, "", args=["other"])))

    async def work() -> list[object]:
        waiting = (cluster.credentials.get_current() for _ in range(3))
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in asyncio.run(work())] == [ConfigurationError] * 3
    assert len(starts(tmp_path)) == 1
    with pytest.raises(ConfigurationError):
        headers(cluster)
    assert len(starts(tmp_path)) == 2


def test_a_plugin_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "PATIENCE", 0.05)
    user = {"exec": {"apiVersion": PLUGIN, "command": "sleep", "args": ["100"]}}
    assert "does not end within" in refused(tmp_path, content(user))


def test_a_plugin_that_asks_questions(tmp_path: Path) -> None:
    user = program(tmp_path, "", interactiveMode="Always")
    assert "asks questions" in refused(tmp_path, content(user))


def test_an_agent_in_a_pod_loads_nothing_that_it_can_do_without(tmp_path: Path) -> None:
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("x")
    script = f"""if True:
        import cgpu_k8s.agent, pathlib, sys
        from cgpu_k8s.apiserver.configuration import load_cluster
        from cgpu_k8s.kubelet import container_runtime, device_plugin, pod_resources
        from cgpu_k8s.node import agent, driver, shares
        found = load_cluster(environment={{"KUBERNETES_SERVICE_HOST": "api"}},
                             account=pathlib.Path({str(tmp_path)!r}))
        assert found.server == "https://api:443"
        spared = {{"yaml", "{plugin.__name__}", "decimal", "grpc", "google", "cryptography"}}
        print(*(spared & sys.modules.keys()))
    """
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")
