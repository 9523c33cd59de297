// CUDA's headers, as their package on PyPI has them, without the compiler's: what marks code of
// devices means nothing here.
#pragma once
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __inline__ inline
#define __location__(a)
