// NVIDIA's management library of the simulated GPUs: how many there are, and their memory.
#include <cstdlib>
#include <cstring>

namespace {

unsigned count_gpus() {
  const char* asked = getenv("SIMULATED_GPUS");
  return asked ? unsigned(atoi(asked)) : 2;
}

struct Memory {
  unsigned long long total, free, used;
};

struct Utilization {
  unsigned gpu, memory;
};

}  // namespace

extern "C" {

size_t simulated_gpu_used(int device);  // runtime.cpp; of this process alone
size_t simulated_gpu_total();

int nvmlInit() { return 0; }
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = count_gpus();
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(index) + 1);
  return index < count_gpus() ? 0 : 2;  // NVML_ERROR_INVALID_ARGUMENT
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = simulated_gpu_total();
  memory->used = simulated_gpu_used(int(reinterpret_cast<unsigned long>(device)) - 1);
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* used) {
  *used = {50, 10};
  return 0;
}

}  // extern "C"
