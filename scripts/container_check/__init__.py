"""Runs docker/Dockerfile and docker/compose.yaml without a container engine (root, Linux, Debian).

    python -m scripts.container_check build DIRECTORY
        the image's instructions, in a chroot
    python -m scripts.container_check run DIRECTORY
        the services, each in namespaces of its own, and the story; `expand` after it: an
        expansion instead

It is not a container engine: docs/deployment-compose.md says what that leaves out.
"""
