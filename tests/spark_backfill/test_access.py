"""URLs, properties and keys as Java wants them; what a wrong one is said to be."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

from backlogctl.errors import BacklogError, ConfigurationError, LedgerError, SourceError, UsageError
from backlogctl.jars import find_java_version
from backlogctl.ledger import open_ledger
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import Security
from backlogctl.spark_backfill.messages.windows import CLOCKS, find_windows
from backlogctl.spark_backfill.sources.reflection import make_access, open_engine, reflect_table
from backlogctl.spark_backfill.spark.kafka_options import make_java_options
from tests.kit.java import write_script
from tests.spark_backfill import world

MARGIN = timedelta(minutes=10)


def test_a_postgres_url_becomes_jdbcs() -> None:
    source = world.make_source(
        "postgresql+psycopg://us%40er:p%2Fw@db.example:6432/my%20shop?sslmode=require&connect_timeout=3",
        limits={"connections": 2, "fetch_size": 77, "statement_timeout": "90s"},
    )
    access = make_access(source, "shop")
    place, _, query = access.url.partition("?")
    parameters = dict(parse_qsl(query))
    assert place == "jdbc:postgresql://db.example:6432/my%20shop"
    assert access.properties["user"] == "us@er"
    assert access.properties["password"] == "p/w"
    assert access.properties["fetchsize"] == "77"
    assert access.properties["queryTimeout"] == "90"
    assert "statement_timeout=90000" in parameters["options"]
    assert "default_transaction_read_only=on" in parameters["options"]
    assert parameters["sslmode"] == "require"
    assert parameters["connectTimeout"] == "3"
    assert parameters["socketTimeout"] == "150"  # seconds: the server's own limit is sooner


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+psycopg:///shop?host=/run/postgresql", "socket"),
        ("postgresql+psycopg://db/shop?passfile=/x", "passfile"),
        ("sqlite://", "in-memory"),
        ("sqlite:////nowhere/shop.db", "no file"),
    ],
)
def test_what_jdbc_cannot_do_is_said(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_access(world.make_source(url), "shop")


def test_client_properties_become_javas(tmp_path: Path) -> None:
    make = ("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    key = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    (tmp_path / "key.pem").write_text(key)
    java = make_java_options(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'p"w\\',
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.pem": "CERT",
            "ssl.key.location": str(tmp_path / "key.pem"),
            "linger.ms": "5",
        }
    )
    assert java == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="p\\"w\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.key": key,
    }
    with pytest.raises(ConfigurationError, match=r"ssl\.crl\.location"):
        make_java_options({"ssl.crl.location": "/x"})


def bounds_of(*times: tuple[Any, Any], **settings: Any) -> tuple[str | None, str | None]:
    gaps = tuple(world.make_gap("t", i, 0, 1, first, last) for i, (first, last) in enumerate(times))
    options: dict[str, Any] = {
        "since": None, "until": None, "margin": MARGIN, "drift": (MARGIN, timedelta(0)),
        "mutable": False, "has_consumed": False,
        **settings,
    }  # fmt: skip
    return find_windows(gaps, **options).read.to_text()


def test_bounds_are_the_gaps_own_widened_by_the_margin() -> None:
    one, two, three = (world.START + timedelta(hours=h) for h in range(3))
    low, high = "2026-11-20T11:50:00.000000Z", "2026-11-20T14:10:00.000000Z"
    assert bounds_of((one, two), (two, three)) == (low, high)
    # A later change moves a mutable row's time.
    assert bounds_of((one, two), mutable=True) == (low, None)
    # One gap without an end leaves all of them open.
    assert bounds_of((one, two), (two, None)) == (low, None)
    assert bounds_of((two, two), since=one, until=three) == (low, high)
    assert bounds_of((None, three), has_consumed=True) == (None, high)
    with pytest.raises(UsageError, match="--since"):
        bounds_of((one, two), (None, three))
    with pytest.raises(UsageError, match="lies before"):
        bounds_of((one, two), since=three, until=one)
    with pytest.raises(UsageError, match="no row can lie between"):
        bounds_of((two, three), until=one)
    assert bounds_of((one, two), (two, three), until=one) == (low, "2026-11-20T12:10:00.000000Z")


def test_rows_that_are_marked_after_their_message_lie_later() -> None:
    first, last = world.START, world.START + timedelta(hours=1)
    gaps = (world.make_gap("t", 0, 0, 1, first, last),)
    options: dict[str, Any] = {"margin": MARGIN, "mutable": False, "has_consumed": False}
    before = find_windows(gaps, since=None, until=None, drift=(MARGIN, timedelta(0)), **options)
    marked = find_windows(gaps, since=None, until=None, drift=(timedelta(0), MARGIN), **options)
    assert before.anywhere.lower == first - MARGIN
    assert before.anywhere.upper == last + CLOCKS
    assert marked.anywhere.lower == first - CLOCKS
    assert marked.anywhere.upper == last + MARGIN
    asked = find_windows(gaps, since=first, until=last, drift=(timedelta(0), MARGIN), **options)
    assert (asked.anywhere.lower, asked.anywhere.upper) == (first - MARGIN, last + MARGIN)


def test_fault_95_a_bound_in_a_doubled_hour_is_widened_to_all_of_it() -> None:
    """A row of its second pass may say a time of the first, and the other way round."""
    begin, end = world.START, world.START + timedelta(hours=2)
    inside = (begin + timedelta(minutes=55), begin + timedelta(minutes=65))
    low, high = "2026-11-20T12:00:00.000000Z", "2026-11-20T14:00:00.000000Z"
    assert bounds_of(inside, doubled=((begin, end),)) == (low, high)
    apart = ((end, end + timedelta(hours=2)),)
    assert bounds_of(inside, doubled=apart) == bounds_of(inside)


SECRET = "hunter2secret"


@pytest.fixture
def guarded(pg_url: str, unique: str) -> Iterator[URL]:
    """A user whom the server asks for a password; everybody else it trusts."""
    url, user = make_url(pg_url), f"shop_{unique}"
    connection = psycopg.connect(
        host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=True
    )
    with connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'".encode())
        row = connection.execute("SHOW hba_file").fetchone()
        assert row is not None
        rules = Path(row[0])
        before = rules.read_text()
        rules.write_text(f"host all {user} all scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
    yield url.set(username=user, password=SECRET)
    lines = rules.read_text().splitlines(keepends=True)
    rules.write_text("".join(line for line in lines if user not in line))
    with psycopg.connect(
        host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=True
    ) as again:
        again.execute(f"DROP ROLE {user}".encode())


def read_table(url: str, name: str) -> None:
    """Looks a table up."""
    engine = open_engine(world.make_source(url), "shop")
    try:
        reflect_table(engine, "shop", name)
    finally:
        engine.dispose()


def look(url: URL | str, table: str = "orders") -> BacklogError:
    """What looking a table up says."""
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    with pytest.raises(BacklogError) as caught:
        read_table(text, table)
    told = f"{caught.value} {caught.value!r} {caught.value.to_json()}"
    assert SECRET not in told
    assert "wrong-one" not in told
    return caught.value


def open_refused(url: URL) -> LedgerError:
    """What opening a ledger says."""
    with pytest.raises(LedgerError) as caught:
        open_ledger(url.render_as_string(hide_password=False))
    assert SECRET not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.postgres
def test_what_is_wrong_in_a_postgresql_url(guarded: URL) -> None:
    place = f"{guarded.host}:{guarded.port}"
    for changes, words in (
        ({"database": "no_such_shop"}, f"{place} has no database 'no_such_shop'"),
        ({"password": "wrong-one"}, f"does not let user '{guarded.username}' in: wrong password"),
        ({"username": "nobody_here", "password": None}, "has no user 'nobody_here'"),
    ):
        wrong = guarded.set(**changes)
        if "password" in changes and changes["password"] is None:
            wrong = URL.create(
                guarded.drivername, "nobody_here", None, guarded.host, guarded.port, "postgres"
            )
        error = look(wrong)
        assert isinstance(error, ConfigurationError)
        assert error.exit_code == 2
        assert words in error.message
        assert error.subject == "sources.shop.url"
        assert "`sources.shop.url`" in error.hint
        refused = open_refused(wrong)
        assert words in refused.message
        assert "`ledger`" in refused.hint
        assert not refused.retryable, "it stays so until the file is corrected"
    none = URL.create(
        guarded.drivername, guarded.username, None, guarded.host, guarded.port, guarded.database
    )
    assert "asks for the password" in look(none).message


@pytest.mark.postgres
def test_a_server_that_is_not_there_may_come_back(guarded: URL) -> None:
    for changes, words in (
        ({"port": 1}, f"cannot be reached: nothing listens at {guarded.host}:1"),
        ({"host": "no-such-host.invalid"}, "there is no host 'no-such-host.invalid'"),
    ):
        error = look(guarded.set(**changes))
        assert isinstance(error, SourceError)
        assert error.retryable
        assert words in error.message
        refused = open_refused(guarded.set(**changes))
        assert refused.retryable
        assert words in refused.message


@pytest.mark.postgres
def test_a_missing_table_is_named_with_the_nearest(pg_url: str) -> None:
    world.fill_table(pg_url, world.ORDERS, [])
    error = look(pg_url, "ordres")
    assert isinstance(error, ConfigurationError)
    assert "has no table 'ordres'" in error.message
    assert "did you mean 'orders'?" in error.hint


def test_sqlite_names_the_file_or_the_table(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/none.db" in look(f"sqlite:///{tmp_path}/none.db").message
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but long enough to be read as one\n" * 20)
    error = look(f"sqlite:///{path}")
    assert isinstance(error, ConfigurationError)
    assert error.message == "the file is not an SQLite database"
    world.fill_table(f"sqlite:///{tmp_path}/shop.db", world.ORDERS, [])
    assert "did you mean 'orders'?" in look(f"sqlite:///{tmp_path}/shop.db", "ordres").hint


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
    address = options.pop("bootstrap.servers")
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
    assert java["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert "ssl.key.password" not in java


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
