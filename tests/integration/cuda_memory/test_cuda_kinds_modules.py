"""Code through the libcuda proxy: charged for what loading took, managed variables refused."""

from __future__ import annotations

import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import START, cubin, fat, run
from lab.driver.cuda_base import MIB, PROGRAMS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_mem_1_a_module_is_charged_until_it_is_unloaded(proxied: Proxied, tmp_path: Path) -> None:
    """MEM-1: every way of loading one."""
    path = tmp_path / "module.ptx"
    path.write_bytes(b".version 7.0\n.target sm_75\n.address_size 64\n.global .b8 big[3000000];\n")
    out = run(
        proxied,
        """
        big = open(sys.argv[1], "rb").read() + b"\\0"
        loads = (
            lambda: made(cuda.cuModuleLoadData, PTX),
            lambda: made(cuda.cuModuleLoadDataEx, big, 0, None, None),
            lambda: made(cuda.cuModuleLoad, sys.argv[1].encode()),
            lambda: made(cuda.cuModuleLoadFatBinary, PTX),
        )
        for load in loads:
            module = load()
            show((used() - base) // MIB, drift())
            check(cuda.cuModuleUnload(module))
            show(used() - base, drift())
        """,
        str(path),
    )
    assert out == ["2 0", "0 0", "4 0", "0 0", "4 0", "0 0", "2 0", "0 0"]


def test_mem_2_a_module_over_the_cap_is_refused_and_unloaded(proxied: Proxied) -> None:
    """MEM-2: nothing stays taken or charged."""
    out = run(
        proxied,
        """
        status, filler = alloc(left() - MIB)
        module, library = c_void_p(), c_void_p()
        before = used()
        show(status, cuda.cuModuleLoadData(byref(module), PTX), used() - before, drift())
        check(free(filler))
        show(cuda.cuModuleLoadData(byref(module), PTX), (used() - base) // MIB, drift())
        """,
    )
    assert out == ["0 2 0 0", "0 2 0"]


def test_mem_1_a_module_goes_with_its_context(proxied: Proxied) -> None:
    """MEM-1."""
    out = run(
        proxied,
        """
        other = made(cuda.cuCtxCreate_v2, 0, 0)
        made(cuda.cuModuleLoadData, PTX)
        check(cuda.cuCtxDestroy_v2(other))
        show(used() - base, drift())
        """,
    )
    assert out == ["0 0"]


def test_mem_1_a_library_is_charged_where_it_is_used_until_it_is_unloaded(proxied: Proxied) -> None:
    """MEM-1: by its kernels, its module and its variables, on each GPU."""
    out = run(
        proxied,
        """
        name = b"plain"
        uses = (
            lambda library: made(
                cuda.cuKernelGetFunction, made(cuda.cuLibraryGetKernel, library, name)),
            lambda library: made(cuda.cuLibraryGetModule, library),
            lambda library: made(cuda.cuLibraryGetGlobal, None, library, b"table", kind=c_uint64),
        )
        for use in uses:
            library = load_library(PTX)
            show(used() - base)
            for _ in range(2):
                use(library)
                show((used() - base) // MIB, drift())
            check(cuda.cuLibraryUnload(library))
            show(used() - base, drift())
        """,
    )
    assert out == ["0", "2 0", "2 0", "0 0"] * 3


def test_mem_1_large_variables_of_a_library_are_charged_when_it_is_used(
    proxied: Proxied, tmp_path: Path
) -> None:
    """MEM-1: a cubin tells how much that can be, so that no other bound hides them."""
    size = 300 * MIB
    image = cubin(managed=False).replace(struct.pack("<Q", 4000), struct.pack("<Q", size))
    (tmp_path / "large").write_bytes(image)
    out = run(
        proxied,
        """
        library = load_library(open(sys.argv[1], "rb").read())
        made(cuda.cuLibraryGetModule, library)
        show((used() - base) // MIB, drift())
        check(cuda.cuLibraryUnload(library))
        show(used() - base, drift())
        """,
        str(tmp_path / "large"),
    )
    assert out == ["302 0", "0 0"]


def test_mem_1_another_container_that_allocates_meanwhile_is_not_charged_here(
    proxied: Proxied,
) -> None:
    """MEM-1: a function seen before costs nothing more, whatever the GPU's free memory does."""
    out = run(
        proxied,
        """
        from pathlib import Path
        base = Path(os.environ["CGPU_PROXY"]).parent.parent
        real = ctypes.CDLL(str(base / "real" / "libcuda.so.1"))
        module = made(cuda.cuModuleLoadData, PTX)
        function = made(cuda.cuModuleGetFunction, module, b"plain")
        before = used()
        check(real.cuMemAlloc_v2(byref(c_uint64()), c_size_t(500 * MIB)))
        made(cuda.cuModuleGetFunction, module, b"plain")
        show(used() - before)
        """,
    )
    assert out == ["0"]


MANAGED_IMAGES = {
    "ptx": "MANAGED_PTX",
    "cubin": "open(sys.argv[1], 'rb').read()",
    "fat binary of a cubin": "open(sys.argv[2], 'rb').read()",
    "fat binary of PTX": "open(sys.argv[3], 'rb').read()",
}


@pytest.mark.parametrize("image", MANAGED_IMAGES.values(), ids=MANAGED_IMAGES.keys())
def test_mem_3_managed_variables_fail_at_module_load_with_a_clear_line(
    proxied: Proxied, tmp_path: Path, image: str
) -> None:
    """MEM-3: from memory and from a file; nothing is loaded."""
    text = b".version 7.0\n.global .attribute( .managed ) .u32 shared;\n"
    paths = [tmp_path / name for name in ("cubin", "fat", "text")]
    paths[0].write_bytes(cubin(managed=True))
    paths[1].write_bytes(fat((1, b".version 7.0\n", 0), (2, cubin(managed=True), 0)))
    paths[2].write_bytes(fat((2, cubin(managed=False), 0), (1, text, 0)))
    outcome = proxied.check(
        START
        + f"image = {image}\n"
        + """
import tempfile
out = c_void_p()
file = tempfile.NamedTemporaryFile()
file.write(image)
file.flush()
path = file.name.encode()
show(cuda.cuModuleLoadData(byref(out), image), cuda.cuModuleLoad(byref(out), path),
     cuda.cuLibraryLoadData(byref(out), image, None, None, 0, None, None, 0),
     cuda.cuLibraryLoadFromFile(byref(out), path, None, None, 0, None, None, 0), used() - base)
""",
        *map(str, paths),
    )
    assert outcome.out == ["801 801 801 801 0"]
    assert outcome.log == (
        "cgpu: managed memory is not available here: __managed__ variable refused in "
        "cuModuleLoadData\n"
    )


def test_mem_3_managed_variables_that_an_image_hides_are_refused_by_address(
    proxied: Proxied,
) -> None:
    """MEM-3: no text as far as a scan goes, but the driver goes on."""
    out = run(
        proxied,
        """
        image = b"// \\x01\\n" + MANAGED_PTX
        module, library = made(cuda.cuModuleLoadData, image), load_library(image)
        address, size = c_uint64(7), c_size_t()
        into = (byref(address), byref(size))
        show(cuda.cuModuleGetGlobal_v2(*into, module, b"table"), address.value)
        show(cuda.cuLibraryGetGlobal(*into, library, b"table"), address.value)
        show(cuda.cuLibraryGetManaged(byref(address), byref(size), library, b"table"))
        """,
    )
    assert out == ["801 7", "801 7", "801"]


DECLARATIONS = {
    ".global .align 4 .b8 a[4000];": 4000,
    ".visible .const .v4 .f32 a [2] [ 0x10 ];": 4 * 4 * 2 * 16,
    ".global .u64 a[3], b, c[2];": 8 * 6,
    ".visible.global.b8 a[1073741824];": 1 << 30,
    ".global .attribute(.managed, .unified(1,2)) .b32 a[7] = {1, 2};": 28,
    ".global .b8 a[] = {1, 2, 3};": 1,
    ".global .b8 a[9999999999999999999999];": 1 << 43,
    "ld.global.u32 %r1, [%rd1+8];": 8,
    ".entry k(.param .u64 .ptr .global .align 8 a, .param .b8 b[64])": 1,
}
UNREAD = (
    ".global .b8 a[1024*1024];",
    ".global .b8 a/*=*/[1000000];",
    ".global .b8 a[N];",
    ".global .b8 " + "a" * 5000 + "[1000000];",
)


def test_what_variables_of_ptx_take_is_read_from_their_declarations(
    image_scan: Path, tmp_path: Path
) -> None:
    """Besides 16 bytes of code for each letter; a size that cannot be read may be anything."""
    expected = [min(16 * len(t) + size, 1 << 43) for t, size in DECLARATIONS.items()]
    images = {f"told{i}": text.encode() for i, text in enumerate(DECLARATIONS)}
    found = [line.split(" ", 1)[1] for line in scan(image_scan, tmp_path, images)]
    assert found == [f"told {size}" for size in expected]
    images = {f"unread{i}": text.encode() for i, text in enumerate(UNREAD)}
    assert all(line.startswith("plain hiding") for line in scan(image_scan, tmp_path, images))


@pytest.fixture(scope="session")
def image_scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scanner under AddressSanitizer."""
    target = tmp_path_factory.mktemp("scan") / "image_scan"
    flags = ("-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    includes = [f"-I{ROOT / part}" for part in ("shim/cuda", "shim", "native")]
    command = ["gcc", *flags, *includes, "-o", target, PROGRAMS / "image_scan.c"]
    subprocess.run(command, check=True)
    return target


def scan(program: Path, folder: Path, images: dict[str, bytes], damaged: int = 0) -> list[str]:
    """What the scanner says of each image."""
    paths = []
    for name, image in images.items():
        paths.append(folder / name)
        paths[-1].write_bytes(image)
    command = [program, str(damaged), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_mem_3_what_an_image_declares_is_found(image_scan: Path, tmp_path: Path) -> None:
    """MEM-3: the needs of a cubin and of PTX are known, those of compressed members are not."""
    plain, managed = cubin(managed=False), cubin(managed=True)
    text = b".version 7.0\n.global .attribute (.managed) .u32 shared;\n"
    size = len(plain) + 4000
    packed = fat((2, managed, 0x2000))
    stating = packed[: 16 + 56] + struct.pack("<Q", 1 << 20) + packed[16 + 64 :]
    expected = {
        "cubin": (plain, f"plain told {size}"),
        "managed cubin": (managed, f"managed told {size}"),
        "text": (text, f"managed told {16 * len(text) + 4}"),
        "other attribute": (b".attribute(.unified(1,2)) .managed", f"plain told {16 * 34}"),
        "fat": (fat((2, plain, 0), (2, plain, 0)), f"plain told {size}"),
        "managed fat": (fat((2, plain, 0), (2, managed, 0)), f"managed told {size}"),
        "managed text in fat": (
            fat((1, text.ljust(400, b"\n"), 0)),
            f"managed told {16 * 400 + 4}",
        ),
        "compressed": (packed, f"plain hiding {8 * ((len(managed) + 7) // 8 * 8)}"),
        "compressed, stating": (stating, f"plain hiding {1 << 20}"),
        "newer in fat": (fat((3, b"newer".ljust(400), 0)), f"plain hiding {16 * 400}"),
        "newer": (b"\x7fNewer\0" + bytes(400), "plain hiding 0"),
    }
    images = {name: image for name, (image, _) in expected.items()}
    assert scan(image_scan, tmp_path, images) == [line for _, line in expected.values()]


def test_hostile_images_are_skipped_without_reading_beyond_what_they_state(
    image_scan: Path, tmp_path: Path
) -> None:
    """REL-4: bytes of foreign programs, whole, cut and damaged 2,000 times each."""
    good = cubin(managed=False)
    images = {
        "cubin": good,
        "cut in the header": good[:63],
        "header alone": good[:64],
        "too many sections": cubin(managed=False, sections=0xFFFF),
        "too many symbols": cubin(managed=False, symbols=1 << 50),
        "sections at the end of memory": good[:40] + struct.pack("<Q", 2**64 - 8) + good[48:],
        "fat cut": fat((2, good, 0))[:20],
        "fat": fat((2, good, 0), (1, b".version 7.0 .attribute(.man", 0)),
        "endless fat": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 16) + bytes(200),
        "fat beyond its end": struct.pack("<IHHQ", 0xBA55ED50, 1, 0xFFFF, 8),
        "member without a header": fat((2, good, 0)).replace(b"\1\1\x40\0", b"\1\1\0\0"),
        "member too short": fat((2, good[:30], 0)),
        "one word": b".attribute",
        "many words": b".attribute(" * 300,
        "declaration cut": b".global .b8 a[12",
        "brackets": b".global .b8 a" + b"[9]" * 300 + b"(((",
        "one letter": b"P",
        "nothing": b"",
    }
    assert len(scan(image_scan, tmp_path, images, damaged=2000)) == len(images)


def test_a_file_that_is_cut_short_while_it_is_loaded_does_not_end_the_program(
    proxied: Proxied, tmp_path: Path
) -> None:
    program = """
        import threading
        path, done = sys.argv[1], threading.Event()
        text = b"// a comment\\n" * (1 << 19)
        def spoil():
            while not done.is_set():
                with open(path, "wb") as file:
                    file.write(text)
                os.truncate(path, 10)
        spoiler = threading.Thread(target=spoil)
        spoiler.start()
        module = c_void_p()
        for _ in range(1000):
            cuda.cuModuleLoad(byref(module), path.encode())
        done.set()
        spoiler.join()
        print("alive")
    """
    path = tmp_path / "module.ptx"
    path.touch()
    assert run(proxied, program, str(path)) == ["alive"]


TABLE = rf"""
        table = b".version 7.0\n.global .b8 t[{100 * MIB}];\n"
        table += b".visible .entry plain() {{ ret; }}\n.visible .entry other() {{ ret; }}\n\0"
"""


def test_mem_6_threads_that_use_a_library_at_once_are_charged_its_variables_once(
    proxied: Proxied,
) -> None:
    """MEM-6."""
    out = run(
        proxied,
        TABLE
        + """
        import threading
        from cgpu_sim import Fault, inject
        from pathlib import Path
        machine = Path(os.environ["CGPU_SIM_MACHINE"]).parent
        inject(machine, Fault("cuLibraryGetModule", delay_us=200000, repeat=True))
        library, current = load_library(table), c_void_p()
        check(cuda.cuCtxGetCurrent(byref(current)))
        def get(name):
            check(cuda.cuCtxSetCurrent(current))
            made(cuda.cuLibraryGetKernel, library, name)
        threads = [threading.Thread(target=get, args=(name,)) for name in (b"plain", b"other")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        show((used() - base) // MIB, drift())
        """,
    )
    assert out == ["102 0"]


def test_mem_1_variables_are_charged_to_each_context_that_asks_for_a_kernel(
    proxied: Proxied,
) -> None:
    """MEM-1: also to one that was made after the kernel's handle was given out."""
    out = run(
        proxied,
        TABLE
        + """
        library, first = load_library(table), c_void_p()
        check(cuda.cuCtxPopCurrent_v2(byref(first)))
        made(cuda.cuLibraryGetKernel, library, b"plain")
        show(used() - base)
        check(cuda.cuCtxPushCurrent_v2(first))
        for _ in range(2):
            made(cuda.cuLibraryGetKernel, library, b"plain")
            show((used() - base) // MIB, drift())
        """,
    )
    assert out == ["0", "102 0", "102 0"]
