// libcuda of the simulated GPU: contexts of the runtime's, nothing else.
#include <cstdio>

extern "C" {

unsigned long long simulated_gpu_contexts();  // runtime.cpp
bool simulated_gpu_initialised();

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = simulated_gpu_contexts() >> device & 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<long>(device) + 1);
  return 0;
}
int cuCtxGetCurrent(void** context) {
  if (!simulated_gpu_initialised()) return 3;  // CUDA_ERROR_NOT_INITIALIZED
  *context = reinterpret_cast<void*>(1L);
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuDeviceGet(int* device, int number) {
  *device = number;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the simulated GPU";
  return 0;
}

#define NO(name)                                                \
  int name() {                                                  \
    fprintf(stderr, "the simulated GPU has no %s\n", #name);    \
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */                  \
  }
NO(cuDeviceGetAttribute)
NO(cuFuncGetAttribute)
NO(cuFuncSetAttribute)
NO(cuFuncSetCacheConfig)
NO(cuLaunchCooperativeKernel)
NO(cuLaunchKernel)
NO(cuLinkAddData_v2)
NO(cuLinkComplete)
NO(cuLinkCreate_v2)
NO(cuModuleGetFunction)
NO(cuModuleLoad)
NO(cuModuleLoadData)
NO(cuModuleLoadDataEx)
NO(cuModuleUnload)
NO(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO(cuPointerGetAttribute)
NO(cuTensorMapEncodeTiled)

}  // extern "C"
