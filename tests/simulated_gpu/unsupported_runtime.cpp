// Functions of CUDA's that torch is linked to and that the simulated GPU has not: each refuses.
#include <cstdio>

static int refuse(const char* name) {
  fprintf(stderr, "the simulated GPU has no %s\n", name);
  return 801;  // cudaErrorNotSupported
}

#define NO(name) \
  extern "C" int name() { return refuse(#name); }

NO(cudaDeviceGetDefaultMemPool)
NO(cudaDeviceGetGraphMemAttribute)
NO(cudaDeviceSetGraphMemAttribute)
NO(cudaFreeAsync)
NO(cudaFuncSetAttribute)
NO(cudaGetSymbolAddress)
NO(cudaGraphAddNode)
NO(cudaGraphConditionalHandleCreate)
NO(cudaGraphDestroy)
NO(cudaGraphExecDestroy)
NO(cudaGraphGetNodes)
NO(cudaGraphInstantiate)
NO(cudaGraphInstantiateWithFlags)
NO(cudaGraphLaunch)
NO(cudaGraphNodeGetDependencies)
NO(cudaGraphRetainUserObject)
NO(cudaIpcCloseMemHandle)
NO(cudaIpcGetEventHandle)
NO(cudaIpcGetMemHandle)
NO(cudaIpcOpenEventHandle)
NO(cudaIpcOpenMemHandle)
NO(cudaKernelSetAttributeForDevice)
NO(cudaLibraryGetGlobal)
NO(cudaLibraryGetKernel)
NO(cudaLibraryGetKernelCount)
NO(cudaLibraryGetManaged)
NO(cudaLibraryGetUnifiedFunction)
NO(cudaLibraryLoadData)
NO(cudaLibraryLoadFromFile)
NO(cudaLibraryUnload)
NO(cudaMallocAsync)
NO(cudaMallocManaged)
NO(cudaMemPoolGetAttribute)
NO(cudaMemPoolSetAccess)
NO(cudaMemPoolSetAttribute)
NO(cudaMemPoolTrimTo)
NO(cudaMemcpyToSymbol)
NO(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
NO(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
NO(cudaProfilerStart)
NO(cudaProfilerStop)
NO(cudaStreamBeginCapture)
NO(cudaStreamBeginCaptureToGraph)
NO(cudaStreamEndCapture)
NO(cudaStreamUpdateCaptureDependencies)
NO(cudaUserObjectCreate)
NO(cudaUserObjectRelease)
