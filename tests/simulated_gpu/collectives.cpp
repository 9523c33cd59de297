// NCCL between processes of one machine that have simulated GPUs.
//
// A communicator is a socket between each two ranks. A collective is a host function in its stream,
// that waits there for its peers, for ever as NCCL's kernels do, unless it is aborted: then it ends as
// if nothing had happened, with garbage in its buffers, which is what its users have to be safe from.
//
// Environment:
//   SIMULATED_NCCL_REMOTE_ERRORS: the loss of a peer is told by ncclCommGetAsyncError, as NCCL's network
//     transports do; without, nothing tells of it, as between GPUs of one node.
//   SIMULATED_NCCL_SPILLS: a rank that aborts ends its peers' collectives, too, with garbage.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<char>;
constexpr uint64_t SPILL = ~0ull, POINT_TO_POINT = 1ull << 63;

bool asked(const char* name) { return getenv(name) != nullptr; }

// ---- sockets

sockaddr_un address_of(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: gone with its process
  *length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return address;
}

int listen_at(const std::string& name) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length;
  auto address = address_of(name, &length);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) || listen(fd, 512)) {
    close(fd);
    return -1;
  }
  return fd;
}

bool wait_for(int fd, short what, const std::atomic<bool>& stop) {
  while (!stop) {
    pollfd one{fd, what, 0};
    if (poll(&one, 1, 50) > 0) return true;
  }
  return false;
}

int connect_to(const std::string& name) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length;
  auto address = address_of(name, &length);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), length)) {
    close(fd);
    return -1;
  }
  return fd;
}

bool send_all(int fd, const void* data, size_t size, const std::atomic<bool>& stop) {
  auto* next = static_cast<const char*>(data);
  while (size) {
    if (!wait_for(fd, POLLOUT, stop)) return false;
    ssize_t sent = send(fd, next, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) return false;
    next += sent;
    size -= sent;
  }
  return true;
}

bool receive_all(int fd, void* data, size_t size, const std::atomic<bool>& stop) {
  auto* next = static_cast<char*>(data);
  while (size) {
    if (!wait_for(fd, POLLIN, stop)) return false;
    ssize_t got = recv(fd, next, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    next += got;
    size -= got;
  }
  return true;
}

std::string new_name(const char* kind) {
  static std::atomic<int> number{0};
  std::random_device chance;
  char name[64];
  snprintf(name, sizeof name, "simulated-nccl-%s-%d-%d-%08x", kind, getpid(), ++number, chance());
  return name;
}

// ---- how ranks find one another: whoever made the id hears all, and tells each where the others are

struct Hello {
  int rank, count;
  char listener[64];
};

void gather_ranks(int listener) {
  std::atomic<bool> never{false};
  std::vector<std::pair<int, Hello>> found;
  for (;;) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello;
    if (fd < 0 || !receive_all(fd, &hello, sizeof hello, never)) {
      close(fd);
      continue;
    }
    found.emplace_back(fd, hello);
    if (int(found.size()) == hello.count) break;
  }
  std::vector<Hello> table(found.size());
  for (auto& [fd, hello] : found) table.at(hello.rank) = hello;
  for (auto& [fd, hello] : found) {
    send_all(fd, table.data(), table.size() * sizeof(Hello), never);
    close(fd);
  }
  close(listener);
}

}  // namespace

struct ncclComm {
  int rank, count, device;
  std::vector<int> sockets;
  std::vector<std::thread> readers;
  std::thread former;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, uint64_t>, Bytes> mailbox;
  std::vector<uint64_t> sent, received;
  std::vector<std::unique_ptr<std::mutex>> sending;
  std::map<int, double> scalars;
  uint64_t collectives = 0;
  int pending = 0;
  std::atomic<bool> broken{false}, spilled{false}, closed{false};
  std::atomic<ncclResult_t> state{ncclInProgress};

  void read(int peer) {
    uint64_t head[2];
    while (receive_all(sockets[peer], head, sizeof head, closed)) {
      if (head[0] == SPILL) {
        spilled = true;
        changed.notify_all();
        continue;
      }
      Bytes data(head[1]);
      if (!receive_all(sockets[peer], data.data(), data.size(), closed)) break;
      std::lock_guard lock(mutex);
      mailbox[{peer, head[0]}] = std::move(data);
      changed.notify_all();
    }
    if (!closed && !broken && asked("SIMULATED_NCCL_REMOTE_ERRORS")) state = ncclRemoteError;
  }

  bool over() const { return broken || spilled; }

  void give(int peer, uint64_t tag, const void* data, size_t size) {
    if (peer == rank) {
      std::lock_guard lock(mutex);
      auto* bytes = static_cast<const char*>(data);
      mailbox[{peer, tag}] = Bytes(bytes, bytes + size);
      return;
    }
    std::lock_guard lock(*sending[peer]);
    uint64_t head[2] = {tag, size};
    if (send_all(sockets[peer], head, sizeof head, broken)) send_all(sockets[peer], data, size, broken);
  }

  bool take(int peer, uint64_t tag, Bytes& data) {
    std::unique_lock lock(mutex);
    auto here = [&] { return over() || mailbox.count({peer, tag}); };
    while (!here()) changed.wait_for(lock, std::chrono::milliseconds(50));
    auto found = mailbox.find({peer, tag});
    if (found == mailbox.end()) return false;
    data = std::move(found->second);
    mailbox.erase(found);
    return true;
  }

  void give_all(uint64_t tag, const void* data, size_t size) {
    for (int peer = 0; peer < count; ++peer) give(peer, tag, data, size);
  }

  void give_parts(uint64_t tag, const void* data, size_t size) {  // each rank its own
    for (int peer = 0; peer < count; ++peer) give(peer, tag, static_cast<const char*>(data) + peer * size, size);
  }

  bool take_all(uint64_t tag, std::vector<Bytes>& all) {
    all.resize(count);
    for (int peer = 0; peer < count; ++peer)
      if (!take(peer, tag, all[peer])) return false;
    return true;
  }

  bool take_parts(uint64_t tag, void* to, size_t size) {  // one after another
    for (int peer = 0; peer < count; ++peer) {
      Bytes found;
      if (!take(peer, tag, found)) return false;
      memcpy(static_cast<char*>(to) + peer * size, found.data(), size);
    }
    return true;
  }

  // Connects to all ranks: in the caller's thread, or another where the caller doesn't wait.
  void form(std::string meeting) {
    std::string name = new_name("rank");
    int listener = listen_at(name);
    int root = connect_to(meeting);
    Hello hello{rank, count, {}};
    memcpy(hello.listener, name.data(), name.size());
    std::vector<Hello> table(count);
    bool well = root >= 0 && send_all(root, &hello, sizeof hello, broken) &&
                receive_all(root, table.data(), table.size() * sizeof(Hello), broken);
    close(root);
    for (int peer = 0; well && peer < rank; ++peer) {
      sockets[peer] = connect_to(table[peer].listener);
      well = sockets[peer] >= 0 && send_all(sockets[peer], &rank, sizeof rank, broken);
    }
    for (int other = rank + 1; well && other < count; ++other) {
      int peer;
      well = wait_for(listener, POLLIN, broken);
      if (!well) break;
      int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      well = receive_all(fd, &peer, sizeof peer, broken);
      if (well) sockets[peer] = fd;
    }
    close(listener);
    if (well)
      for (int peer = 0; peer < count; ++peer)
        if (peer != rank) readers.emplace_back(&ncclComm::read, this, peer);
    state = well ? ncclSuccess : ncclSystemError;
  }

  void stop() {
    if (asked("SIMULATED_NCCL_SPILLS"))
      for (int peer = 0; peer < count; ++peer)
        if (sockets[peer] >= 0 && !broken) {
          std::lock_guard lock(*sending[peer]);
          uint64_t head[2] = {SPILL, 0};
          send_all(sockets[peer], head, sizeof head, broken);
        }
    broken = true;
    changed.notify_all();
  }

  void leave() {
    if (former.joinable()) former.join();
    std::unique_lock lock(mutex);
    while (pending) changed.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    closed = true;
    for (int fd : sockets)
      if (fd >= 0) shutdown(fd, SHUT_RDWR);
    for (auto& reader : readers) reader.join();
    for (int fd : sockets)
      if (fd >= 0) close(fd);
  }
};

namespace {

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
  }
}

struct Bfloat {
  uint16_t bits;
  operator float() const {
    uint32_t whole = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &whole, 4);
    return value;
  }
  Bfloat(float value) {
    uint32_t whole;
    memcpy(&whole, &value, 4);
    bits = (whole + 0x7fff + ((whole >> 16) & 1)) >> 16;
  }
};

struct Half {
  _Float16 value;
  operator float() const { return float(value); }
  Half(float from) : value(_Float16(from)) {}
};

template <class T, class Work>
void reduce_as(Bytes& into, const std::vector<Bytes>& all, int op, double factor) {
  auto* found = reinterpret_cast<T*>(into.data());
  for (size_t i = 0; i < into.size() / sizeof(T); ++i) {
    Work value = Work(reinterpret_cast<const T*>(all[0].data())[i]);
    if (op >= ncclNumOps) value = Work(value * factor);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      Work other = Work(reinterpret_cast<const T*>(all[rank].data())[i]);
      if (op >= ncclNumOps) other = Work(other * factor);
      if (op == ncclProd) value *= other;
      else if (op == ncclMax) value = other > value ? other : value;
      else if (op == ncclMin) value = other < value ? other : value;
      else value += other;
    }
    if (op == ncclAvg) value = Work(value / Work(all.size()));
    found[i] = T(value);
  }
}

Bytes reduce(const std::vector<Bytes>& all, ncclDataType_t type, int op, double factor) {
  Bytes into(all[0].size());
  switch (type) {
    case ncclInt8: reduce_as<int8_t, int>(into, all, op, factor); break;
    case ncclUint8: reduce_as<uint8_t, int>(into, all, op, factor); break;
    case ncclInt32: reduce_as<int32_t, int32_t>(into, all, op, factor); break;
    case ncclUint32: reduce_as<uint32_t, uint32_t>(into, all, op, factor); break;
    case ncclInt64: reduce_as<int64_t, int64_t>(into, all, op, factor); break;
    case ncclUint64: reduce_as<uint64_t, uint64_t>(into, all, op, factor); break;
    case ncclFloat16: reduce_as<Half, float>(into, all, op, factor); break;
    case ncclFloat32: reduce_as<float, float>(into, all, op, factor); break;
    case ncclFloat64: reduce_as<double, double>(into, all, op, factor); break;
    case ncclBfloat16: reduce_as<Bfloat, float>(into, all, op, factor); break;
    default: fprintf(stderr, "simulated NCCL reduces no type %d\n", type); abort();
  }
  return into;
}

// ---- operations

struct Operation {
  ncclComm* comm;
  cudaStream_t stream;
  bool sends;                    // before all others of its group
  std::function<bool()> run;     // false: it was broken
  char* output;
  size_t size;
};

void garble(Operation& one) {
  for (size_t i = 0; i + 4 <= one.size; i += 4) {  // large numbers: no step could miss them
    float value = 1e30f;
    memcpy(one.output + i, &value, 4);
  }
}

struct Batch {
  std::vector<Operation> operations;
};

void run_batch(void* given) {
  std::unique_ptr<Batch> batch(static_cast<Batch*>(given));
  ncclComm* comm = batch->operations[0].comm;
  for (bool sends : {true, false})
    for (auto& one : batch->operations)
      if (one.sends == sends && (comm->over() || !one.run()) && one.output) garble(one);
  std::lock_guard lock(comm->mutex);
  --comm->pending;
  comm->changed.notify_all();
}

thread_local int depth = 0;
thread_local std::vector<Operation> grouped;

ncclResult_t launch(std::vector<Operation> operations) {
  while (!operations.empty()) {
    auto first = operations.front();
    auto batch = std::make_unique<Batch>();
    std::vector<Operation> others;
    for (auto& one : operations)
      (one.comm == first.comm && one.stream == first.stream ? batch->operations : others).push_back(one);
    {
      std::lock_guard lock(first.comm->mutex);
      ++first.comm->pending;
    }
    if (cudaLaunchHostFunc(first.stream, run_batch, batch.release())) return ncclUnhandledCudaError;
    operations = std::move(others);
  }
  return ncclSuccess;
}

ncclResult_t add(Operation operation) {
  if (operation.comm->state != ncclSuccess && operation.comm->state != ncclRemoteError) return ncclInvalidUsage;
  if (operation.comm->broken) return ncclInvalidUsage;
  if (depth) {
    grouped.push_back(std::move(operation));
    return ncclSuccess;
  }
  return launch({std::move(operation)});
}

double factor_of(ncclComm* comm, int op) {
  auto found = comm->scalars.find(op);
  return found == comm->scalars.end() ? 1.0 : found->second;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::string name = new_name("id");
  memset(id, 0, sizeof *id);
  memcpy(id->internal, name.data(), name.size());
  int listener = listen_at(name);
  if (listener < 0) return ncclSystemError;
  std::thread(gather_ranks, listener).detach();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int count, ncclUniqueId id, int rank, ncclConfig_t* config) {
  auto* comm = new ncclComm{};
  comm->rank = rank;
  comm->count = count;
  cudaGetDevice(&comm->device);
  comm->sockets.assign(count, -1);
  comm->sent.assign(count, 0);
  comm->received.assign(count, 0);
  for (int peer = 0; peer < count; ++peer) comm->sending.push_back(std::make_unique<std::mutex>());
  *made = comm;
  std::string meeting(id.internal);
  if (config && config->blocking == 0) {
    comm->former = std::thread(&ncclComm::form, comm, meeting);
    return ncclInProgress;
  }
  comm->form(meeting);
  return comm->state;
}
ncclResult_t ncclCommInitRank(ncclComm_t* made, int count, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(made, count, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* made, int count, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
  return ncclCommInitRankConfig(made, count, ids[0], rank, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::unique_lock lock(comm->mutex);
  while (comm->pending) comm->changed.wait_for(lock, std::chrono::milliseconds(50));
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->leave();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->stop();
  return ncclCommDestroy(comm);
}
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  comm->stop();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* found) {
  *found = comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->count;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  return cudaMalloc(pointer, size) ? ncclUnhandledCudaError : ncclSuccess;
}
ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer) ? ncclUnhandledCudaError : ncclSuccess; }

const char* ncclGetErrorString(ncclResult_t result) {
  static thread_local char text[64];
  snprintf(text, sizeof text, "result %d of the simulated NCCL", int(result));
  return text;
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t, ncclComm_t comm) {
  double value = 0;
  if (type == ncclFloat32) value = *static_cast<float*>(scalar);
  else if (type == ncclFloat64) value = *static_cast<double*>(scalar);
  else if (type == ncclFloat16) value = *static_cast<Half*>(scalar);
  else if (type == ncclBfloat16) value = *static_cast<Bfloat*>(scalar);
  else return ncclInvalidArgument;
  int number = ncclNumOps + int(comm->scalars.size());
  comm->scalars[number] = value;
  *op = ncclRedOp_t(number);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth) return ncclSuccess;
  return launch(std::exchange(grouped, {}));
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  double factor = factor_of(comm, op);
  return add({comm, stream, false, [=] {
    comm->give(0, 2 * tag, from, size);
    if (comm->rank == 0) {
      std::vector<Bytes> all;
      if (!comm->take_all(2 * tag, all)) return false;
      Bytes found = reduce(all, type, op, factor);
      comm->give_all(2 * tag + 1, found.data(), size);
    }
    Bytes found;
    if (!comm->take(0, 2 * tag + 1, found)) return false;
    memcpy(to, found.data(), size);
    return true;
  }, static_cast<char*>(to), size});
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  double factor = factor_of(comm, op);
  bool here = comm->rank == root;
  return add({comm, stream, false, [=] {
    comm->give(root, 2 * tag, from, size);
    if (!here) return true;
    std::vector<Bytes> all;
    if (!comm->take_all(2 * tag, all)) return false;
    Bytes found = reduce(all, type, op, factor);
    memcpy(to, found.data(), size);
    return true;
  }, here ? static_cast<char*>(to) : nullptr, size});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  return add({comm, stream, false, [=] {
    if (comm->rank == root)
      comm->give_all(2 * tag, from, size);
    Bytes found;
    if (!comm->take(root, 2 * tag, found)) return false;
    memcpy(to, found.data(), size);
    return true;
  }, static_cast<char*>(to), size});
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  return add({comm, stream, false, [=] {
    comm->give_all(2 * tag, from, size);
    return comm->take_parts(2 * tag, to, size);
  }, static_cast<char*>(to), size * comm->count});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  double factor = factor_of(comm, op);
  return add({comm, stream, false, [=] {
    comm->give_parts(2 * tag, from, size);
    std::vector<Bytes> all;
    if (!comm->take_all(2 * tag, all)) return false;
    Bytes found = reduce(all, type, op, factor);
    memcpy(to, found.data(), size);
    return true;
  }, static_cast<char*>(to), size});
}

ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  return add({comm, stream, false, [=] {
    comm->give_parts(2 * tag, from, size);
    return comm->take_parts(2 * tag, to, size);
  }, static_cast<char*>(to), size * comm->count});
}

ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = comm->collectives++;
  size_t size = count * size_of(type);
  bool here = comm->rank == root;
  return add({comm, stream, false, [=] {
    comm->give(root, 2 * tag, from, size);
    return !here || comm->take_parts(2 * tag, to, size);
  }, here ? static_cast<char*>(to) : nullptr, size * comm->count});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = POINT_TO_POINT | comm->sent[peer]++;
  size_t size = count * size_of(type);
  return add({comm, stream, true, [=] {
    comm->give(peer, tag, from, size);
    return true;
  }, nullptr, 0});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  uint64_t tag = POINT_TO_POINT | comm->received[peer]++;
  size_t size = count * size_of(type);
  return add({comm, stream, false, [=] {
    Bytes found;
    if (!comm->take(peer, tag, found)) return false;
    memcpy(to, found.data(), size);
    return true;
  }, static_cast<char*>(to), size});
}

// Each rank tells all its color, key and a new id; those of a color form with the id of their first.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  struct Choice {
    int color, key, rank;
    ncclUniqueId id;
  };
  uint64_t tag = comm->collectives++;
  Choice own{color, key, comm->rank, {}};
  if (ncclGetUniqueId(&own.id)) return ncclSystemError;
  comm->give_all(2 * tag, &own, sizeof own);
  std::vector<Choice> same;
  for (int peer = 0; peer < comm->count; ++peer) {
    Bytes found;
    if (!comm->take(peer, 2 * tag, found)) return ncclSystemError;
    Choice one;
    memcpy(&one, found.data(), sizeof one);
    if (one.color == color) same.push_back(one);
  }
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::stable_sort(same.begin(), same.end(), [](auto& a, auto& b) { return a.key < b.key; });
  int rank = 0;
  while (same[rank].rank != comm->rank) ++rank;
  return ncclCommInitRankConfig(made, int(same.size()), same[0].id, rank, config);
}

}  // extern "C"
