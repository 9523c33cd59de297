// nccl.h asks for this; it needs no more than the runtime's types.
#include <cuda_runtime_api.h>
