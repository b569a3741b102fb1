#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "cuda/float.hpp"
#include "cuda/gather_table.hpp"
#include "memory/packed_rows.hpp"

namespace flowtrain::cuda {

/// Enqueues a copy of rows from slabs to a packed buffer, with a cast from one dtype to the other.
///
/// One kernel copies all slabs, however their sizes differ; more than 2,720 slabs need several.
/// The table travels with the launch, so that the caller may change or free it at once.
///
/// @param packed  Address of a contiguous buffer of `rows.rows()` rows.
/// Errors: CudaError; BadArgument for an address that is not aligned to its dtype.
void gather_rows(int device, CUdeviceptr packed, Float packed_dtype, const memory::PackedRows& rows,
                 Float slab_dtype, CUstream stream);

/// The reverse: from the packed buffer to the slabs, which must not overlap.
void scatter_rows(int device, CUdeviceptr packed, Float packed_dtype,
                  const memory::PackedRows& rows, Float slab_dtype, CUstream stream);

/// A copy as the kernels take it.
struct RowCopy {
  const memory::PackedRows& rows;
  std::uint64_t packed;
  bool gather;
  Float from, to;
};

/// Launches the kernels of a copy in the current context.
void launch_copy(CUstream stream, const RowCopy& copy);

}  // namespace flowtrain::cuda
