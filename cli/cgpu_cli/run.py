"""``cgpu-run``: a program with a share of the GPUs' memory, without containers and without root."""

from __future__ import annotations

from cgpu_env import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. It ends only by exiting, or by becoming another program."""
    program.run("cgpu-run", _run_command)


def _run_command() -> int:
    from cgpu_cli.running.launch import launch_program

    return launch_program()


if __name__ == "__main__":
    main()
