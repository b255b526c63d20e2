"""Kinds of calls by their names, as CUDA and HIP spell them."""

from __future__ import annotations

import pytest

from specgate.analysis.traces.cuda_calls import CallKind, kind_of, to_host

CALLS: dict[CallKind | None, str] = {
    "allocation": "cudaMalloc cudaMallocAsync_ptsz cudaMallocManaged cudaMallocHost cudaHostAlloc cudaHostRegister "
    "cudaFree cudaFreeAsync cudaFreeHost cuMemAlloc_v2 cuMemFree_v2 cuMemAllocManaged cuMemHostAlloc cuMemCreate "
    "cuMemMap cuMemUnmap cuMemRelease cuMemAddressReserve cuMemAddressFree cuMemSetAccess cuMemPoolTrimTo hipMalloc "
    "hipMallocAsync hipMallocFromPoolAsync hipExtMallocWithFlags hipHostMalloc hipHostFree hipFree hipMemCreate",
    "wait": "cudaStreamSynchronize_v3020 cudaDeviceSynchronize cuCtxSynchronize cuStreamSynchronize_ptsz "
    "hipStreamSynchronize_spt hipDeviceSynchronize hipEventSynchronize",
    "waiting copy": "cudaMemcpy cudaMemcpy2D_v3020 cudaMemcpyPeer cuMemcpyDtoH_v2 hipMemcpyWithStream hipMemcpyDtoH "
    "hipMemcpy_spt cudaMemcpyFromSymbol",
    "copy": "cudaMemcpyAsync cuMemcpyDtoHAsync_v2 hipMemcpyAsync hipMemcpyDtoHAsync cudaMemcpy3DBatchAsync",
    "set": "cudaMemsetAsync cuMemsetD8Async hipMemsetD32Async",
    "launch": "cudaLaunchKernel cudaLaunchKernelExC_v11060 cuLaunchKernelEx cudaGraphLaunch hipGraphLaunch "
    "hipModuleLaunchKernel hipExtModuleLaunchKernel hipExtLaunchKernel hipHccModuleLaunchKernel hipLaunchKernel "
    "cudaLaunchCooperativeKernel",
    "quiet": "cudaEventRecordWithFlags cudaStreamIsCapturing cudaGetLastError cudaEventQuery cudaStreamWaitEvent "
    "cudaLaunchHostFunc cudaFuncSetAttribute __hipPushCallConfiguration cuTensorMapEncodeTiled",
    None: "cudaGraphInstantiate cudaMemset cudaMemPrefetchAsync hipModuleLoad musaMalloc aclrtMalloc hsa_signal_wait "
    "zeCommandListAppendLaunchKernel urEnqueueKernelLaunch culprit INVALID",
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_is_of_the_kind_that_its_reference_says_in_all_its_spellings(kind: CallKind | None) -> None:
    assert {name: kind_of(name) for name in CALLS[kind].split()} == dict.fromkeys(CALLS[kind].split(), kind)


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (("Memcpy DtoH (Device -> Pinned)", "CopyDeviceToHost", "MEMORY_COPY_DEVICE_TO_HOST", "Memcpy AtoH"), True),
        (("Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "Memcpy DtoD", "Memcpy PtoP", "Memcpy HtoH"), False),
        (("Memset (Device)", "FillBuffer"), False),
        (("Memcpy 99", "Memcpy", "hipMemcpyDefault", "dma_3"), None),
    ],
)
def test_a_copys_name_says_whether_it_leads_to_the_host_or_nothing(names: tuple[str, ...], answer: bool | None) -> None:
    assert [to_host(name) for name in names] == [answer] * len(names)
