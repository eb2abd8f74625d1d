"""Launch kernels of 500 us through NVIDIA's own bindings, ten and a synchronisation, for ever."""

from cuda.bindings import driver as cuda


def check(answer):  # noqa: ANN001, ANN201
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


check(cuda.cuInit(0))
context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
check(cuda.cuCtxSetCurrent(context))
image = b".version 7.0\n.target sm_75\n.visible .entry spin_500us() {}\0"
kernel = check(cuda.cuModuleGetFunction(check(cuda.cuModuleLoadData(image)), b"spin_500us"))
stream = check(cuda.cuStreamCreate(1))
while True:
    for _ in range(10):
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
    check(cuda.cuStreamSynchronize(stream))
