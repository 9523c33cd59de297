// Functions of NCCL's that torch is linked to and that the simulated one has not: each refuses.
#include <cstdio>

#define NO(name)                                              \
  extern "C" int name() {                                     \
    fprintf(stderr, "the simulated NCCL has no %s\n", #name); \
    return 5; /* ncclInvalidUsage */                          \
  }

NO(ncclCommGetUniqueId)
NO(ncclCommGrow)
NO(ncclCommInitAll)
NO(ncclCommMemStats)
NO(ncclCommResume)
NO(ncclCommShrink)
NO(ncclCommSuspend)
NO(ncclCommWindowDeregister)
NO(ncclCommWindowRegister)
NO(ncclDevCommCreate)
NO(ncclDevCommDestroy)
NO(ncclGetLsaMultimemDevicePointer)
NO(ncclGetPeerDevicePointer)
NO(ncclGroupSimulateEnd)
NO(ncclPutSignal)
NO(ncclScatter)
NO(ncclSignal)
NO(ncclWaitSignal)
NO(ncclWinGetUserPtr)
