"""The first code of the programs in ``bin``: until they handle an interrupt, it ends them silently.

While Python imports a program's modules, an interrupt would print a traceback. Nothing is imported
here before that is changed; ``cgpu_env.program`` changes it back.
"""

import _signal  # type: ignore[import-not-found]  # built in, unlike ``signal``

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else it is ignored
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def cgpu() -> "NoReturn":
    """Run ``cgpu``."""
    from cgpu_cli.main import main

    main()


def cgpu_run() -> "NoReturn":
    """Run ``cgpu-run``. Its start delays every program."""
    import gc

    gc.disable()  # as in cgpu_node.bootstrap: it finds nothing
    from cgpu_node import code_bundle

    code_bundle.install_finder("cgpu-run")
    from cgpu_cli.run import main

    main()


def cgpu_smi() -> "NoReturn":
    """Run ``cgpu-smi``."""
    from cgpu_cli.smi import main

    main()


def kubectl_inspect_cgpu() -> "NoReturn":
    """Run ``kubectl inspect cgpu``."""
    from cgpu_k8s.inspect.main import main

    main()


def cgpud() -> "NoReturn":
    """Run ``cgpud``."""
    from cgpu_server.main import main

    main()
