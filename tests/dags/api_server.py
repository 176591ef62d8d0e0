"""Airflow's API server with rights by name: a process of its own, on an empty database."""

from __future__ import annotations

import socket
from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

# Users who may read these DAGs only; all others as their role says.
LIMITED = {"tokyo": {"nights_in_tokyo"}, "stranger": {"of_another_team"}}


class NamedRights(SimpleAuthManager):
    """The simple auth manager's roles cannot tell one DAG from another."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **asked: Any) -> bool:
        """As the role says, but for the limited."""
        allowed = LIMITED.get(user.username)
        if allowed is not None and (details is None or details.id not in allowed):
            return False
        return super().is_authorized_dag(user=user, details=details, **asked)


def serve() -> None:
    """Prints the port, then serves until it is stopped."""
    import uvicorn
    from airflow.utils.db import initdb

    initdb()
    from airflow.api_fastapi.main import app

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"port {listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve()
