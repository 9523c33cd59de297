// nccl.h has types of its own where this defines none.
