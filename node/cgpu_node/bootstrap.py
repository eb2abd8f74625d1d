"""Starts a module of ours: ``python -I -S -E -X utf8 bootstrap.py MODULE ARGUMENT ...``.

With ``-I -S -E``, only the standard library is on the path: no user's directory, no .pth file, no
variable. ``code_bundle`` adds the directories of cgpu itself, and only those. Python compiles this
file at every start, so all other code is in ``code_bundle``.
"""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # collection takes 0.7 ms of the start, and finds nothing; cgpud enables it
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    from cgpu_node import code_bundle

    sys.path[:] = [*sys.path[1:], *code_bundle.import_path()]
    code_bundle.install_finder(sys.argv[1])
    __import__(sys.argv[1])
    STATUS = sys.modules[sys.argv[1]].main(sys.argv[2:])
    if sys.stdout is not None:  # it may be closed
        sys.stdout.flush()
    if STATUS == 0:  # a refusal loads what other starts do not need
        code_bundle.keep_modules()
    os._exit(STATUS)  # the interpreter's own end takes 2 ms and has nothing left to do
