"""Keys by the real openssl: what Kafka's Java client reads passes, and all else is refused."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from backlogctl.errors import ConfigurationError
from backlogctl.jars import find_java_version
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import Security
from backlogctl.spark_backfill.spark.kafka_options import make_java_options
from tests.java_tools import write_script

PASSWORD = "hunter2hunter2"
RSA = "openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out {name}"
EC = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}"
ENCRYPT = f"openssl pkcs8 -topk8 -passout pass:{PASSWORD} -in rsa.pem -out {{name}} "
MAKERS = {
    "rsa.pem": RSA,
    "ec.pem": EC,
    "ed25519.pem": "openssl genpkey -algorithm ed25519 -out {name}",
    "pkcs1.pem": "openssl rsa -in rsa.pem -traditional -out {name}",
    "pkcs1-encrypted.pem": "openssl rsa -in rsa.pem -traditional -aes128 "
    f"-passout pass:{PASSWORD} -out {{name}}",
    "sec1.pem": "openssl ec -in ec.pem -out {name}",
    "sec1-parameters.pem": "openssl ecparam -name prime256v1 -genkey -out {name}",
    "pbes2.pem": ENCRYPT,
    "3des.pem": ENCRYPT + "-v1 PBE-SHA1-3DES",
}
PASSWORDS = {"pkcs1-encrypted.pem", "pbes2.pem", "3des.pem"}
OLD_JAVA = pytest.mark.skipif(find_java_version() > 17, reason="newer ones read PBES2")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each kind of key; `NAME.cert` is its certificate, of itself."""
    place = tmp_path_factory.mktemp("keys")
    for name, maker in MAKERS.items():
        run(maker.format(name=name), place)
        password = f"-passin pass:{PASSWORD}" if name in PASSWORDS else ""
        run(f"openssl req -x509 -new -key {name} {password} -subj /CN=me -out {name}.cert", place)
    return place


@pytest.fixture(scope="module")
def kafka(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that asks for certificates, and trusts those of `rsa.pem` and `ec.pem`."""
    place = tmp_path_factory.mktemp("mutual")
    own = Security.make(place / "security").ca
    trusted = place / "trusted.pem"
    certificates = [own, *(keys / f"{name}.cert" for name in ("rsa.pem", "ec.pem"))]
    trusted.write_text("".join(path.read_text() for path in certificates))
    asking = {"ssl.client.auth": "requested", "ssl.truststore.location": str(trusted)}
    with EmbeddedKafka.start(place, secured=True, properties=asking) as kafka:
        yield kafka


def run(command: str, place: Path) -> None:
    subprocess.run(shlex.split(command), cwd=place, check=True, capture_output=True)


def describe(keys: Path, name: str, **changes: str) -> dict[str, str]:
    """Client properties with this key."""
    secret = {"ssl.key.password": PASSWORD} if name in PASSWORDS else {}
    files = {"ssl.key.location": keys / name, "ssl.certificate.location": keys / f"{name}.cert"}
    return {**secret, **{key: str(path) for key, path in files.items()}, **changes}


def ask_kafka(properties: Mapping[str, str], place: Path) -> str:
    """Kafka's own tool, a Java client: the topics, or how it failed."""
    options = make_java_options(properties)
    address = options.pop("kafka.bootstrap.servers")
    file = place / "client.properties"
    lines = []
    for name, value in options.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{name.removeprefix('kafka.')}={escaped}\n")
    file.write_text("".join(lines))
    tool = write_script(place / "kafka-topics.sh", "TopicCommand")
    command = [str(tool), "--bootstrap-server", address, "--command-config", str(file), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", ["rsa.pem", "ec.pem"])
def test_with_what_passes_java_talks_to_the_broker(
    kafka: EmbeddedKafka, keys: Path, name: str, tmp_path: Path
) -> None:
    # OpenSSL does not mind a password that nothing needs; Java does.
    key = describe(keys, name, **{"ssl.key.password": PASSWORD})
    assert ask_kafka({**kafka.client_properties, **key}, tmp_path) == ""


def test_a_key_with_a_password_that_java_17_knows(
    kafka: EmbeddedKafka, keys: Path, tmp_path: Path
) -> None:
    key = describe(keys, "3des.pem", **{"ssl.certificate.location": str(keys / "rsa.pem.cert")})
    assert ask_kafka({**kafka.client_properties, **key}, tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pkcs1.pem", r"a PKCS#1 key \(`BEGIN RSA PRIVATE KEY`\)"),
        ("pkcs1-encrypted.pem", r"a PKCS#1 key \(`BEGIN RSA PRIVATE KEY`\)"),
        ("sec1.pem", r"a SEC1 key \(`BEGIN EC PRIVATE KEY`\)"),
        ("sec1-parameters.pem", r"a SEC1 key \(`BEGIN EC PRIVATE KEY`\)"),
        pytest.param("pbes2.pem", r"encrypted with PBES2 .*on Java 17", marks=OLD_JAVA),
    ],
)
def test_what_java_does_not_read_is_refused_with_a_command_that_helps(
    keys: Path, name: str, words: str, tmp_path: Path
) -> None:
    place = tmp_path / "it's here"
    place.mkdir()
    (place / name).write_bytes((keys / name).read_bytes())
    properties = describe(keys, name, **{"ssl.key.location": str(place / name)})
    with pytest.raises(ConfigurationError, match=words) as caught:
        make_java_options(properties)
    assert caught.value.subject == str(place / name)
    assert PASSWORD not in str(caught.value)
    (command,) = re.findall(r"`(openssl [^`]*)`", caught.value.hint)
    given = ["-passin", f"pass:{PASSWORD}"] if name in PASSWORDS else []
    subprocess.run([*shlex.split(command), *given], check=True, capture_output=True)
    (made,) = place.glob("*.pkcs8.pem")
    java = make_java_options({**properties, "ssl.key.location": str(made)})
    assert java["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert "kafka.ssl.key.password" not in java


def test_a_kind_that_java_does_not_know_and_a_password_that_is_missing(keys: Path) -> None:
    with pytest.raises(ConfigurationError, match="another kind than RSA, EC or DSA") as caught:
        make_java_options(describe(keys, "ed25519.pem"))
    assert caught.value.hint == "take an RSA or an EC key"
    with pytest.raises(ConfigurationError, match=r"without `ssl\.key\.password`"):
        make_java_options(describe(keys, "3des.pem", **{"ssl.key.password": ""}))
    cert = str(keys / "rsa.pem.cert")
    with pytest.raises(ConfigurationError, match="no private key"):
        make_java_options({"ssl.key.location": cert, "ssl.certificate.location": cert})


def test_a_key_in_the_configuration_is_named_by_its_property(keys: Path) -> None:
    text = (keys / "pkcs1.pem").read_text()
    with pytest.raises(ConfigurationError, match="PKCS#1") as caught:
        make_java_options({"ssl.key.pem": text, "ssl.certificate.pem": "x"})
    assert caught.value.subject == "ssl.key.pem"
    assert text.splitlines()[1] not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "pkcs1.pem",
        "sec1.pem",
        "ed25519.pem",
        "pkcs1-encrypted.pem",
        pytest.param("pbes2.pem", marks=OLD_JAVA),
    ],
)
def test_what_is_refused_java_does_not_read(
    kafka: EmbeddedKafka, keys: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "backlogctl.spark_backfill.spark.kafka_options.check_key", lambda *_, **__: None
    )
    said = ask_kafka({**kafka.client_properties, **describe(keys, name)}, tmp_path)
    assert "Invalid PEM keystore configs" in said
