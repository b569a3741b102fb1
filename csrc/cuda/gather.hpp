#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "cuda/gather_table.hpp"
#include "memory/packed_rows.hpp"

namespace flowtrain::cuda {

/// Dtypes of rows.
enum class Float : std::uint8_t { kFloat32, kBfloat16, kFloat16 };

constexpr std::size_t bytes_of(Float dtype) { return dtype == Float::kFloat32 ? 4 : 2; }

/// Enqueues a copy of rows from slabs to a packed buffer, with a cast from one dtype to the other.
///
/// One kernel copies all slabs, however their sizes differ; more than 2,720 slabs need several.
/// The table travels with the launch, so that the caller may change or free it at once.
///
/// @param packed  Address of a contiguous buffer of `rows.rows()` rows.
/// Errors: CudaError; BadArgument for an address that is not aligned to its dtype.
void gather_rows(int device, CUdeviceptr packed, Float packed_dtype, const memory::PackedRows& rows,
                 Float slab_dtype, CUstream stream, const RowSplit& split = {});

/// The reverse: from the packed buffer to the slabs, which must not overlap.
void scatter_rows(int device, CUdeviceptr packed, Float packed_dtype,
                  const memory::PackedRows& rows, Float slab_dtype, CUstream stream,
                  const RowSplit& split = {});

/// A copy as the kernels take it.
struct RowCopy {
  const memory::PackedRows& rows;
  std::uint64_t packed;
  bool gather;
  Float from, to;
  RowSplit split;
};

/// Launches the kernels of a copy in the current context.
void launch_copy(CUstream stream, const RowCopy& copy);

}  // namespace flowtrain::cuda
