"""GPUs for tests, without one: a CUDA runtime, an NCCL and a management library in host memory,
which torch takes for NVIDIA's.

All of torch's own code for CUDA and NCCL runs on it, in many processes: streams, events, pinned
memory, the caching allocator, ProcessGroupNCCL with its reconfiguration and its abort, FSDP2. The
kernels don't, nor what makes them (Triton, CUDA graphs), nor NVIDIA's own libraries: what a GPU
computes is computed by the CPU's operators, and how long that takes says nothing.
"""
