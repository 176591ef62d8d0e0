"""What a pod's containers find in their file system and environment, as folders of this machine.

A container is a process here: paths of its mounts stand in its words, variables and files as those
of the folders.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Mounts:
    """Of one pod.

    Attributes:
        read: an object of the pod's namespace, by its plural and name.
        metadata: the pod's.
        place: the pod's own folder.
        claims: the folder of what claims keep.
    """

    read: Callable[[str, str], Object]
    metadata: Object
    place: Path
    claims: Path
    folders: dict[str, Path] = field(default_factory=dict)  # by the path in the container

    def fill(self, spec: Object) -> None:
        """The volumes of the pod, where its first container has them."""
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in spec["containers"][0].get("volumeMounts", []):
            self.folders[mount["mountPath"]] = self._make(volumes[mount["name"]])
        for mount in spec["containers"][0].get("volumeMounts", []):
            for name, content in self._read_files(volumes[mount["name"]]).items():
                path = self.folders[mount["mountPath"]] / name
                path.write_text(self.find_here(content.decode()))

    def add_account(self, token: str, certificate: Path, namespace: str) -> None:
        """What a pod logs in to the API server with."""
        folder = self.folders[ACCOUNT] = self.place / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(certificate.read_bytes())
        (folder / "namespace").write_text(namespace)

    def find_here(self, text: str) -> str:
        """The text with paths of mounts as those of this machine."""
        paths = sorted(self.folders, key=len, reverse=True)
        if not paths:
            return text
        pattern = rf"({'|'.join(map(re.escape, paths))})(?![\w.-])"
        return re.sub(pattern, lambda found: str(self.folders[found[1]]), text)

    def list_variables(self, container: Object) -> Mapping[str, str]:
        """Its environment; of what is read from elsewhere whole ConfigMaps and Secrets, and the
        pod's name."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            for kind, ref in source.items():
                plural = {"secretRef": "secrets", "configMapRef": "configmaps"}[kind]
                found |= {k: v.decode() for k, v in self._read_data(plural, ref["name"]).items()}
        for one in container.get("env", []):
            path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            named = path == "metadata.name"
            found[one["name"]] = self.metadata["name"] if named else one.get("value", "")
        return {name: self.find_here(value) for name, value in found.items()}

    def _make(self, volume: Object) -> Path:
        claim = volume.get("persistentVolumeClaim")
        folder: Path = self.place / volume["name"]
        if claim:
            folder = self.claims / claim["claimName"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _read_files(self, volume: Object) -> dict[str, bytes]:
        if "configMap" in volume:
            return self._read_data("configmaps", volume["configMap"]["name"])
        if "secret" in volume:
            return self._read_data("secrets", volume["secret"]["secretName"])
        return {}

    def _read_data(self, plural: str, name: str) -> dict[str, bytes]:
        data = self.read(plural, name).get("data") or {}
        if plural == "secrets":
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {key: value.encode() for key, value in data.items()}
