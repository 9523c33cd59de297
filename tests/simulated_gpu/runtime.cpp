// A CUDA runtime without a GPU: what torch asks of libcudart, in host memory.
//
// Device memory is memory of the process; a stream is a thread that does copies, waits and host
// functions in their order; an event is a place in a stream. So all that is asynchronous on a GPU is
// here, too. Kernels can't run: operators.py has torch do its operators by the CPU's, through
// cudaLaunchHostFunc, and one that comes here all the same is refused by its name.
//
// Environment:
//   SIMULATED_GPUS: how many there are; 2 without.
//   SIMULATED_GPU_DELAY: each copy begins up to so many microseconds late; 0 without.
//   SIMULATED_GPU_TRACE: prints Python's stack where a process initialises CUDA.
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t TOTAL_MEMORY = size_t(16) << 30;
constexpr int LEGACY_STREAM = 1, THREAD_STREAM = 2;  // handles of CUDA's that are no pointers

struct Stream {
  explicit Stream(int device) : device(device) {}
  int device;
  std::deque<std::function<void()>> tasks;
  std::condition_variable fed;
  uint64_t asked = 0, done = 0;
  bool started = false;
};

struct Mark {  // one recording of an event
  bool reached = false;
  Clock::time_point at;
};

struct Event {
  int device;
  std::shared_ptr<Mark> mark;
};

struct Range {
  size_t size;
  cudaMemoryType type;
  int device;
  bool registered;  // pinned by cudaHostRegister, not cudaHostAlloc
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uintptr_t, Range> ranges;
  std::map<int, Stream*> defaults;
  std::vector<Stream*> streams;
  std::map<const void*, std::string> kernels;
  std::vector<bool> contexts = std::vector<bool>(64);
  size_t used[64] = {};
  std::atomic<pid_t> process{0};
  bool closed = false;   // Python is about to end
  int operators = 0;     // that Python does at this moment
};

World& world() {
  static World* made = new World;  // never destroyed: threads of streams outlive main
  return *made;
}

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) {
  last_error = error;
  return error;
}

int count_gpus() {
  static int found = [] {
    const char* asked = getenv("SIMULATED_GPUS");
    return asked ? atoi(asked) : 2;
  }();
  return found;
}

void print_stack() {
  auto state = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  auto dump = reinterpret_cast<void (*)(int, void*)>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  if (state && dump) dump(2, state());
}

// A fork of a process that has used CUDA can't use it.
bool forked() {
  pid_t none = 0, self = getpid();
  if (world().process.compare_exchange_strong(none, self)) {
    if (getenv("SIMULATED_GPU_TRACE")) print_stack();
    return false;
  }
  return none != self;
}

#define ENTER() \
  if (forked()) return failed(cudaErrorInitializationError)

// Whoever waits for a stream lets Python go on meanwhile, which may have to do what is waited for.
// torch itself waits with Python's lock here and there, as a GPU needs nobody's.
class Released {
  using Check = int (*)();
  using Save = void* (*)();
  using Restore = void (*)(void*);
  void* state_ = nullptr;

 public:
  Released() {
    static auto check = reinterpret_cast<Check>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    static auto save = reinterpret_cast<Save>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
    static auto alive = reinterpret_cast<Check>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    if (check && alive() && check()) state_ = save();
  }
  ~Released() {
    static auto restore = reinterpret_cast<Restore>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
    if (state_) restore(state_);
  }
};

void use_device(int device) { world().contexts[device] = true; }

void serve(Stream* stream) {
  World& w = world();
  std::unique_lock lock(w.mutex);
  for (;;) {
    stream->fed.wait(lock, [&] { return !stream->tasks.empty(); });
    auto task = std::move(stream->tasks.front());
    stream->tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    ++stream->done;
    w.changed.notify_all();
  }
}

uint64_t give(Stream* stream, std::function<void()> task) {  // with the world locked
  if (!stream->started) {
    stream->started = true;
    std::thread(serve, stream).detach();
  }
  stream->tasks.push_back(std::move(task));
  stream->fed.notify_one();
  return ++stream->asked;
}

Stream* find(cudaStream_t handle, int device = current) {  // with the world locked
  World& w = world();
  auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > THREAD_STREAM) return reinterpret_cast<Stream*>(handle);
  Stream*& stream = w.defaults[device];
  if (!stream) {
    stream = new Stream(device);
    w.streams.push_back(stream);
    use_device(device);
  }
  return stream;
}

void wait_until(std::unique_lock<std::mutex>& lock, Stream* stream, uint64_t number) {
  world().changed.wait(lock, [&] { return stream->done >= number; });
}

void delay() {
  static long longest = [] {
    const char* asked = getenv("SIMULATED_GPU_DELAY");
    return asked ? atol(asked) : 0L;
  }();
  if (longest <= 0) return;
  thread_local std::mt19937 chance{std::random_device{}()};
  std::this_thread::sleep_for(std::chrono::microseconds(chance() % longest));
}

const std::pair<const uintptr_t, Range>* range_of(const void* pointer) {  // with the world locked
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto& ranges = world().ranges;
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return nullptr;
  auto& found = *--after;
  return address < found.first + found.second.size ? &found : nullptr;
}

cudaError_t allocate(void** pointer, size_t size, cudaMemoryType type) {
  size_t whole = (size + 4095) / 4096 * 4096;
  if (size == 0) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  World& w = world();
  std::lock_guard lock(w.mutex);
  use_device(current);
  if (type == cudaMemoryTypeDevice && w.used[current] + whole > TOTAL_MEMORY)
    return failed(cudaErrorMemoryAllocation);
  void* made = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  if (type == cudaMemoryTypeDevice) w.used[current] += whole;
  w.ranges[reinterpret_cast<uintptr_t>(made)] = {whole, type, current, false};
  *pointer = made;
  return cudaSuccess;
}

void wait_for_all(std::unique_lock<std::mutex>& lock, int device) {
  World& w = world();
  auto streams = w.streams;
  for (Stream* stream : streams)
    if (stream->device == device) wait_until(lock, stream, stream->asked);
}

cudaError_t release(void* pointer, cudaMemoryType type) {
  if (!pointer) return cudaSuccess;
  World& w = world();
  Released released;
  std::unique_lock lock(w.mutex);
  auto found = w.ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == w.ranges.end() || found->second.type != type || found->second.registered)
    return failed(cudaErrorInvalidValue);
  Range range = found->second;
  wait_for_all(lock, range.device);
  w.ranges.erase(reinterpret_cast<uintptr_t>(pointer));
  if (type == cudaMemoryTypeDevice) w.used[range.device] -= range.size;
  munmap(pointer, range.size);
  return cudaSuccess;
}

// Copies between the GPU and memory that isn't pinned are over when the call returns.
cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t handle, bool wait) {
  World& w = world();
  Released released;
  std::unique_lock lock(w.mutex);
  Stream* stream = find(handle);
  bool pinned = range_of(to) && range_of(from);
  auto number = give(stream, [=] {
    delay();
    memcpy(to, from, size);
  });
  if (wait || !pinned) wait_until(lock, stream, number);
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  auto* event = reinterpret_cast<Event*>(handle);
  auto mark = event->mark = std::make_shared<Mark>();
  give(find(stream), [mark, &w] {
    std::lock_guard lock(w.mutex);
    mark->at = Clock::now();
    mark->reached = true;
    w.changed.notify_all();
  });
  return cudaSuccess;
}

std::string name_of(const void* function) {
  auto found = world().kernels.find(function);
  if (found == world().kernels.end()) return "an unknown kernel";
  int status = 0;
  char* plain = abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status);
  std::string name = plain ? plain : found->second;
  free(plain);
  return name;
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  std::string name = name_of(function);
  if (name.find("spin_kernel") != std::string::npos) {  // torch.cuda._sleep
    auto cycles = *static_cast<int64_t*>(arguments[0]);
    World& w = world();
    std::lock_guard lock(w.mutex);
    give(find(stream), [cycles] { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles / 2)); });
    return cudaSuccess;
  }
  fprintf(stderr, "a kernel came to the simulated GPU, which runs none: %s\n", name.c_str());
  return failed(cudaErrorNotSupported);
}

int unsupported_by_driver() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

int context_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = world().contexts[device];
  return 0;
}

}  // namespace

extern "C" {

unsigned long long simulated_gpu_contexts() {  // a bit for each GPU that this process has touched
  unsigned long long found = 0;
  for (int device = 0; device < count_gpus(); ++device)
    if (world().contexts[device]) found |= 1ull << device;
  return found;
}

// Leaves an operator of torch's to a stream.
cudaError_t simulated_gpu_run(int device, cudaStream_t stream, cudaHostFn_t function, void* data) {
  ENTER();
  World& w = world();
  std::lock_guard lock(w.mutex);
  give(find(stream, device), [=, &w] {
    {
      std::lock_guard lock(w.mutex);
      if (w.closed) return;
      ++w.operators;
    }
    function(data);
    std::lock_guard lock(w.mutex);
    --w.operators;
    w.changed.notify_all();
  });
  return cudaSuccess;
}

cudaError_t simulated_gpu_wait(int device, cudaStream_t handle) {
  ENTER();
  std::unique_lock lock(world().mutex);
  Stream* stream = find(handle, device);
  wait_until(lock, stream, stream->asked);
  return cudaSuccess;
}

// Returns once no thread of a stream is in Python, or will be.
void simulated_gpu_close() {
  World& w = world();
  if (forked()) return;
  std::unique_lock lock(w.mutex);
  w.closed = true;
  w.changed.wait(lock, [&] { return w.operators == 0; });
}

size_t simulated_gpu_total() { return TOTAL_MEMORY; }
size_t simulated_gpu_used(int device) {
  std::lock_guard lock(world().mutex);
  return world().used[device];
}

bool simulated_gpu_initialised() { return world().process != 0; }

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER();
  *count = count_gpus();
  return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  ENTER();
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER();
  if (device < 0 || device >= count_gpus()) return failed(cudaErrorInvalidDevice);
  current = device;
  std::lock_guard lock(world().mutex);
  use_device(device);  // as CUDA does since 12
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  ENTER();
  if (device < 0 || device >= count_gpus()) return failed(cudaErrorInvalidDevice);
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "Simulated GPU");
  found->uuid.bytes[0] = char(device + 1);
  found->totalGlobalMem = TOTAL_MEMORY;
  found->sharedMemPerBlock = found->sharedMemPerMultiprocessor = 48 << 10;
  found->sharedMemPerBlockOptin = 48 << 10;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  for (int axis = 0; axis < 3; ++axis) {
    found->maxThreadsDim[axis] = axis < 2 ? 1024 : 64;
    found->maxGridSize[axis] = axis ? 65535 : 2147483647;
  }
  found->major = 9;
  found->multiProcessorCount = 4;
  found->canMapHostMemory = found->concurrentKernels = found->unifiedAddressing = 1;
  found->pciBusID = device + 1;
  found->asyncEngineCount = 2;
  found->l2CacheSize = 4 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  ENTER();
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  if (attribute == cudaDevAttrMultiProcessorCount) *value = 4;
  if (attribute == cudaDevAttrMaxThreadsPerBlock) *value = 1024;
  if (attribute == cudaDevAttrWarpSize) *value = 32;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  snprintf(name, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  ENTER();
  Released released;
  std::unique_lock lock(world().mutex);
  wait_for_all(lock, current);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  bool known = !strcmp(symbol, "cuDevicePrimaryCtxGetState");
  *function = known ? (void*)context_state : (void*)unsupported_by_driver;
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  cudaError_t found = last_error;
  last_error = cudaSuccess;
  return found;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t) { return "simulated"; }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  if (error == cudaErrorInitializationError) return "initialization error";
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  snprintf(text, sizeof text, "error %d of the simulated GPU", int(error));
  return text;
}

cudaError_t cudaMalloc(void** pointer, size_t size) {
  ENTER();
  return allocate(pointer, size, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* pointer) {
  ENTER();
  return release(pointer, cudaMemoryTypeDevice);
}
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  ENTER();
  return allocate(pointer, size, cudaMemoryTypeHost);
}
cudaError_t cudaMallocHost(void** pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void* pointer) {
  ENTER();
  return release(pointer, cudaMemoryTypeHost);
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned) {
  ENTER();
  World& w = world();
  std::lock_guard lock(w.mutex);
  use_device(current);
  auto first = reinterpret_cast<uintptr_t>(pointer);
  for (auto& [begin, range] : w.ranges)
    if (begin < first + size && first < begin + range.size)
      return failed(cudaErrorHostMemoryAlreadyRegistered);
  w.ranges[first] = {size, cudaMemoryTypeHost, current, true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  ENTER();
  World& w = world();
  Released released;
  std::unique_lock lock(w.mutex);
  auto found = w.ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == w.ranges.end() || !found->second.registered)
    return failed(cudaErrorHostMemoryNotRegistered);
  wait_for_all(lock, found->second.device);
  w.ranges.erase(reinterpret_cast<uintptr_t>(pointer));
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  ENTER();
  std::lock_guard lock(world().mutex);
  *total = TOTAL_MEMORY;
  *left = TOTAL_MEMORY - world().used[current];
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
  ENTER();
  std::lock_guard lock(world().mutex);
  auto* range = range_of(pointer);
  found->type = range ? range->second.type : cudaMemoryTypeUnregistered;
  found->device = range ? range->second.device : -2;
  found->devicePointer = range ? const_cast<void*>(pointer) : nullptr;
  found->hostPointer = range && range->second.type == cudaMemoryTypeHost ? const_cast<void*>(pointer) : nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  ENTER();
  return copy(to, from, size, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  ENTER();
  return copy(to, from, size, stream, false);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  ENTER();
  return copy(to, from, size, nullptr, true);
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
  ENTER();
  std::lock_guard lock(world().mutex);
  give(find(stream), [=] {
    delay();
    memset(pointer, value, size);
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  return cudaMemsetAsync(pointer, value, size, nullptr);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int) {
  ENTER();
  World& w = world();
  std::lock_guard lock(w.mutex);
  use_device(current);
  auto* stream = new Stream(current);
  w.streams.push_back(stream);
  *made = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  return cudaStreamCreateWithPriority(made, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }  // its thread waits for ever

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ENTER();
  Released released;
  std::unique_lock lock(world().mutex);
  Stream* stream = find(handle);
  wait_until(lock, stream, stream->asked);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ENTER();
  std::lock_guard lock(world().mutex);
  Stream* stream = find(handle);
  return stream->done >= stream->asked ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  ENTER();
  World& w = world();
  std::lock_guard lock(w.mutex);
  auto mark = reinterpret_cast<Event*>(handle)->mark;
  if (!mark) return cudaSuccess;
  give(find(stream), [mark, &w] {
    std::unique_lock lock(w.mutex);
    w.changed.wait(lock, [&] { return mark->reached; });
  });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  ENTER();
  std::lock_guard lock(world().mutex);
  give(find(stream), [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  ENTER();
  std::lock_guard lock(world().mutex);
  give(find(stream), [=] { function(stream, cudaSuccess, data); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  ENTER();
  std::lock_guard lock(world().mutex);
  use_device(current);
  *made = reinterpret_cast<cudaEvent_t>(new Event{current});
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER();
  return record(event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  ENTER();
  return record(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  ENTER();
  std::lock_guard lock(world().mutex);
  auto mark = reinterpret_cast<Event*>(handle)->mark;
  return !mark || mark->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  ENTER();
  Released released;
  std::unique_lock lock(world().mutex);
  auto mark = reinterpret_cast<Event*>(handle)->mark;
  if (mark) world().changed.wait(lock, [&] { return mark->reached; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  ENTER();
  std::lock_guard lock(world().mutex);
  auto began = reinterpret_cast<Event*>(first)->mark, ended = reinterpret_cast<Event*>(second)->mark;
  if (!began || !ended) return failed(cudaErrorInvalidResourceHandle);
  if (!began->reached || !ended->reached) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(ended->at - began->at).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  ENTER();
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  ENTER();
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  ENTER();
  return launch(function, arguments, config->stream);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  ENTER();
  return launch(kernel, arguments, stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

struct Launch {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Launch> launches;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  launches.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Launch one = launches.back();
  launches.pop_back();
  *grid = one.grid;
  *block = one.block;
  *shared = one.shared;
  *static_cast<void**>(stream) = one.stream;
  return cudaSuccess;
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  world().kernels[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}

}  // extern "C"
