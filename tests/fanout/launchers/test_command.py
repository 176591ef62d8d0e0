"""The user's own commands: their errors, their time limits, what they print."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.config import Consumers, root
from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import CommandLauncher, Fleet, command
from tests.fanout.launchers.fleets import make_fleet, no_stop, python


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return make_fleet(tmp_path)


def make(**settings: Any) -> CommandLauncher:
    commands = {"scale": ["true"], "stop": ["true"]}
    return CommandLauncher(
        Consumers.model_validate({"launcher": "command", **commands, **settings})
    )


def test_without_a_status_nobody_knows(fleet: Fleet) -> None:
    launcher = make()
    launcher.scale(fleet, 3, no_stop)
    assert launcher.count_running(fleet) is None
    launcher.stop(fleet, no_stop)


@pytest.mark.parametrize(
    ("printed", "count"), [("3", 3), ("ready: 2/5", 2), ("a\n\n 12 b 7", 12), ("n=0", 0)]
)
def test_status_is_the_first_number(fleet: Fleet, printed: str, count: int) -> None:
    status = python(f"import sys; print(99, file=sys.stderr); print({printed!r})")
    assert make(status=status).count_running(fleet) == count


def test_a_failed_command_is_an_error_with_its_last_lines(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "_SECRETS", {"hunter2-of-the-shop"})
    text = "import sys; print('out'); [print('line', n, file=sys.stderr) for n in range(99)];"
    text += "sys.exit('denied: hunter2-of-the-shop')"
    with pytest.raises(
        BacklogError, match=r"exit code 1.*(\n.*)*line 98\n  denied: \*\*\*"
    ) as caught:
        make(stop=python(text)).stop(fleet, no_stop)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"
    assert "line 5\n" not in caught.value.message
    assert "consumers.stop" in caught.value.subject
    with pytest.raises(BacklogError, match="only on stdout"):
        make(scale=python("import sys; print('only on stdout'); sys.exit(2)")).scale(
            fleet, 1, no_stop
        )
    with pytest.raises(BacklogError, match="could not be started: No such file"):
        make(scale=["no-such-program"]).scale(fleet, 1, no_stop)
    with pytest.raises(BacklogError, match="printed no number but: none"):
        make(status=["echo", "none"]).count_running(fleet)


def test_a_command_that_takes_too_long_is_ended(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"

    class Late(Deadline):
        """The time is not over before the command has begun."""

        @property
        def expired(self) -> bool:
            return begun.exists() and super().expired

    monkeypatch.setattr(command, "Deadline", Late)
    began = time.monotonic()
    text = f"echo begun; touch {begun}; sleep 600; :"
    with pytest.raises(BacklogError, match=r"longer than 0.3 s(.|\n)*begun"):
        make(scale=["sh", "-c", text], command_within="300ms").scale(fleet, 1, no_stop)
    assert time.monotonic() - began < 120


def test_scale_waits_for_status_and_gives_up_in_the_end(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    text = "import sys; p = sys.argv[1]; n = int(open(p).read()) + 1; open(p, 'w').write(str(n));"
    status = python(text + "print(n - 1)", str(count))
    make(status=status).scale(fleet, 2, no_stop)
    assert count.read_text() == "3"
    slow = make(status=["echo", "7"], command_within="200ms")
    # Its commands take no time: they have the same limit.
    monkeypatch.setattr(slow, "_run", lambda *_: "7")
    with pytest.raises(BacklogError, match=r"still prints 7 after 0.2 s, not 2"):
        slow.scale(fleet, 2, no_stop)
    with pytest.raises(BacklogError, match=r"still prints 7 after 0.2 s, not 0"):
        make(status=["echo", "7"], stop_within="200ms").stop(fleet, no_stop)


def test_look_ends_a_command(fleet: Fleet) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make(scale=["sleep", "600"]).scale(fleet, 1, stop)
    assert time.monotonic() - began < 120
