#pragma once

#include <cstddef>
#include <cstdint>

/// The part of UCX's C interface that FlowTrain uses, declared here so that nothing needs UCX's
/// headers to be built. Since UCX 1.14 these declarations have not changed. Structs end with the
/// last field that is used: UCX reads only fields that a mask names. A test compares them with the
/// headers.
namespace flowtrain::transport::ucx {

/// The oldest version that is used. An assertion of 1.13, where it is built with assertions, ends a
/// process whose peer dies while they connect.
inline constexpr unsigned kMajor = 1, kMinor = 14;

extern "C" {

using Status = std::int8_t;  // ucs_status_t
inline constexpr Status kOk = 0, kInProgress = 1, kErrBusy = -15, kErrLast = -100;

/// ucs_status_ptr_t: null for success, a request, or a status below zero.
using StatusPtr = void*;
/// UCS_PTR_IS_PTR.
inline bool is_request(StatusPtr result) {
  return reinterpret_cast<std::uintptr_t>(result) - 1 <
         static_cast<std::uintptr_t>(std::intptr_t{kErrLast}) - 1;
}

using Config = struct ucp_config;
using Context = struct ucp_context;
using WorkerHandle = struct ucp_worker;
using WorkerAddress = struct ucp_address;
using Ep = struct ucp_ep;
using Mem = struct ucp_mem;

struct Params {  // ucp_params_t
  static constexpr std::uint64_t kFeatures = 1 << 0;
  static constexpr std::uint64_t kWakeup = 1 << 4, kAm = 1 << 6;  // Features.
  std::uint64_t field_mask;
  std::uint64_t features;
};

struct ContextAttr {  // ucp_context_attr_t
  static constexpr std::uint64_t kMemoryTypes = 1 << 2;
  std::uint64_t field_mask;
  std::size_t request_size;
  int thread_mode;
  std::uint64_t memory_types;
};

inline constexpr int kHostMemory = 0, kCudaMemory = 1;  // ucs_memory_type_t

struct WorkerParams {  // ucp_worker_params_t
  static constexpr std::uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;
  std::uint64_t field_mask;
  int thread_mode;
};

struct ErrHandler {  // ucp_err_handler_t
  void (*cb)(void* arg, Ep* ep, Status status);
  void* arg;
};

struct EpParams {  // ucp_ep_params_t
  static constexpr std::uint64_t kAddress = 1 << 0, kErrMode = 1 << 1, kErrHandler = 1 << 2;
  static constexpr int kPeer = 1;  // Of err_mode.
  std::uint64_t field_mask;
  const void* address;
  int err_mode;
  ErrHandler err_handler;
};

struct MemMapParams {  // ucp_mem_map_params_t
  static constexpr std::uint64_t kAddress = 1 << 0, kLength = 1 << 1, kMemoryType = 1 << 4;
  std::uint64_t field_mask;
  void* address;
  std::size_t length;
  unsigned flags;
  unsigned prot;
  int memory_type;
};

struct RequestParam {  // ucp_request_param_t
  static constexpr std::uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4,
                                 kMemh = 1 << 8;
  static constexpr unsigned kForce = 1 << 0;                                   // Of a close.
  static constexpr unsigned kReply = 1 << 0, kEager = 1 << 1, kRndv = 1 << 2;  // Of a send.
  std::uint32_t op_attr_mask;
  std::uint32_t flags;
  void* request;
  union {
    void (*send)(void* request, Status status, void* user_data);
    void (*recv_am)(void* request, Status status, std::size_t length, void* user_data);
  } cb;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  void* recv_info;
  Mem* memh;
};

struct AmRecvParam {  // ucp_am_recv_param_t
  static constexpr std::uint64_t kReplyEp = 1 << 0, kRndv = 1 << 17;
  std::uint64_t recv_attr;
  Ep* reply_ep;
};

struct AmHandlerParam {  // ucp_am_handler_param_t
  static constexpr std::uint64_t kId = 1 << 0, kCallback = 1 << 2, kArg = 1 << 3;
  std::uint64_t field_mask;
  unsigned id;
  std::uint32_t flags;
  Status (*cb)(void* arg, const void* header, std::size_t header_length, void* data,
               std::size_t length, const AmRecvParam* param);
  void* arg;
};

}  // extern "C"

/// Functions with their types. A line declares, for example, the member `ep_create` for
/// `ucp_ep_create`.
#define FLOWTRAIN_UCX_CALLS(X)                                                                \
  X(ucp, get_version, void, (unsigned*, unsigned*, unsigned*))                                \
  X(ucp, get_version_string, const char*, ())                                                 \
  X(ucs, status_string, const char*, (Status))                                                \
  X(ucp, config_read, Status, (const char*, const char*, Config**))                           \
  X(ucp, config_modify, Status, (Config*, const char*, const char*))                          \
  X(ucp, config_release, void, (Config*))                                                     \
  X(ucp, init_version, Status, (unsigned, unsigned, const Params*, const Config*, Context**)) \
  X(ucp, cleanup, void, (Context*))                                                           \
  X(ucp, context_query, Status, (Context*, ContextAttr*))                                     \
  X(ucp, worker_create, Status, (Context*, const WorkerParams*, WorkerHandle**))              \
  X(ucp, worker_destroy, void, (WorkerHandle*))                                               \
  X(ucp, worker_get_address, Status, (WorkerHandle*, WorkerAddress**, std::size_t*))          \
  X(ucp, worker_release_address, void, (WorkerHandle*, WorkerAddress*))                       \
  X(ucp, worker_progress, unsigned, (WorkerHandle*))                                          \
  X(ucp, worker_get_efd, Status, (WorkerHandle*, int*))                                       \
  X(ucp, worker_arm, Status, (WorkerHandle*))                                                 \
  X(ucp, worker_set_am_recv_handler, Status, (WorkerHandle*, const AmHandlerParam*))          \
  X(ucp, ep_create, Status, (WorkerHandle*, const EpParams*, Ep**))                           \
  X(ucp, ep_close_nbx, StatusPtr, (Ep*, const RequestParam*))                                 \
  X(ucp, am_send_nbx, StatusPtr,                                                              \
    (Ep*, unsigned, const void*, std::size_t, const void*, std::size_t, const RequestParam*)) \
  X(ucp, am_recv_data_nbx, StatusPtr,                                                         \
    (WorkerHandle*, void*, void*, std::size_t, const RequestParam*))                          \
  X(ucp, request_free, void, (void*))                                                         \
  X(ucp, mem_map, Status, (Context*, const MemMapParams*, Mem**))                             \
  X(ucp, mem_unmap, Status, (Context*, Mem*))

/// UCX's functions, looked up at run time.
struct Calls {
#define FLOWTRAIN_UCX_MEMBER(library, name, result, arguments) result(*name) arguments = nullptr;
  FLOWTRAIN_UCX_CALLS(FLOWTRAIN_UCX_MEMBER)
#undef FLOWTRAIN_UCX_MEMBER
};

}  // namespace flowtrain::transport::ucx
