"""The runtime route: change a bundle before the low-level runtime reads it."""

from __future__ import annotations

from cgpu_env.record import NamedTuple
from cgpu_hook import document
from cgpu_hook.modifiers import draft_container, edit_config
from cgpu_hook.plan import rootfs_path
from cgpu_node.image.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_hook.plan import Setting


class Creation(NamedTuple):
    """A container that is being created.

    Attributes:
        config_path: its configuration, usually ``config.json`` of the bundle.
        bundle: absolute path of the bundle.
        id: the container's id.
        pid: the process that starts the low-level runtime. It keeps the share alive until
            ``runtime_dir`` exists.
        runtime_dir: the directory that the low-level runtime keeps for this container.
    """

    config_path: str
    bundle: str
    id: str
    pid: int
    runtime_dir: str


def edit_bundle(creation: Creation, setting: Setting, answer: Callable[[str], None]) -> None:
    """Change a bundle's configuration so that its container gets its share and no more.

    If cgpu is off, the file is not touched. After an error nothing has changed.

    Args:
        creation: the container.
        setting: where state and driver are.
        answer: called as soon as the container may be created, with the directory of its share, or
            "" if cgpu is off. In legacy mode, the container's hook admits the share later.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    config = document.read(creation.config_path)

    def open_rootfs() -> Rootfs:
        return Rootfs(rootfs_path(config, creation.bundle), bundle=creation.bundle)

    draft = draft_container(config, creation.id, open_rootfs, setting)
    if draft.plan.request is None:
        new = edit_config(draft)
        if new is not config:
            document.write(creation.config_path, new)
        answer("")
        return
    from cgpu_hook.container import admit_container, announce_container, give_back_share
    from cgpu_hook.edit import is_legacy

    if is_legacy(draft.config):  # the share is admitted by our prestart hook
        from cgpu_hook.legacy import add_prestart_hook

        document.write(creation.config_path, add_prestart_hook(draft))
        answer(draft.host_files.share_directory)
        return
    new = edit_config(draft)
    admit_container(draft, creation.pid, creation.runtime_dir)
    try:
        document.write(creation.config_path, new)
    except BaseException:
        give_back_share(draft)
        raise
    answer(draft.host_files.share_directory)
    announce_container(draft)
