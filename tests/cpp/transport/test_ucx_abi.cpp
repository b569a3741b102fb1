// Our declarations of UCX's interface against its headers. Skipped where they are not installed.

#if __has_include(<ucp/api/ucp.h>)

#include <ucp/api/ucp.h>

#include <type_traits>

#include "transport/ucx/abi.hpp"

namespace ucx = flowtrain::transport::ucx;

namespace {

// A field has the place and the size that it has in UCX.
#define SAME_FIELD(ours, theirs, field)                                  \
  static_assert(offsetof(ucx::ours, field) == offsetof(theirs, field) && \
                sizeof(std::declval<ucx::ours>().field) == sizeof(std::declval<theirs>().field))
#define SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ucx::ours) == static_cast<long long>(theirs))

static_assert(sizeof(ucx::Status) == sizeof(ucs_status_t));
SAME_VALUE(kOk, UCS_OK);
SAME_VALUE(kInProgress, UCS_INPROGRESS);
SAME_VALUE(kErrBusy, UCS_ERR_BUSY);
SAME_VALUE(kErrLast, UCS_ERR_LAST);

SAME_FIELD(Params, ucp_params_t, field_mask);
SAME_FIELD(Params, ucp_params_t, features);
SAME_VALUE(Params::kFeatures, UCP_PARAM_FIELD_FEATURES);
SAME_VALUE(Params::kAm, UCP_FEATURE_AM);
SAME_VALUE(Params::kWakeup, UCP_FEATURE_WAKEUP);

SAME_FIELD(ContextAttr, ucp_context_attr_t, field_mask);
SAME_FIELD(ContextAttr, ucp_context_attr_t, memory_types);
SAME_VALUE(ContextAttr::kMemoryTypes, UCP_ATTR_FIELD_MEMORY_TYPES);
SAME_VALUE(kHostMemory, UCS_MEMORY_TYPE_HOST);
SAME_VALUE(kCudaMemory, UCS_MEMORY_TYPE_CUDA);

SAME_FIELD(WorkerParams, ucp_worker_params_t, field_mask);
SAME_FIELD(WorkerParams, ucp_worker_params_t, thread_mode);
SAME_VALUE(WorkerParams::kThreadMode, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_VALUE(WorkerParams::kSerialized, UCS_THREAD_MODE_SERIALIZED);

SAME_FIELD(ErrHandler, ucp_err_handler_t, cb);
SAME_FIELD(ErrHandler, ucp_err_handler_t, arg);
SAME_FIELD(EpParams, ucp_ep_params_t, field_mask);
SAME_FIELD(EpParams, ucp_ep_params_t, field_mask);
SAME_FIELD(EpParams, ucp_ep_params_t, address);
SAME_FIELD(EpParams, ucp_ep_params_t, err_mode);
SAME_FIELD(EpParams, ucp_ep_params_t, err_handler);
SAME_VALUE(EpParams::kAddress, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME_VALUE(EpParams::kErrMode, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME_VALUE(EpParams::kErrHandler, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME_VALUE(EpParams::kPeer, UCP_ERR_HANDLING_MODE_PEER);

SAME_FIELD(MemMapParams, ucp_mem_map_params_t, field_mask);
SAME_FIELD(MemMapParams, ucp_mem_map_params_t, address);
SAME_FIELD(MemMapParams, ucp_mem_map_params_t, length);
SAME_VALUE(MemMapParams::kAddress, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME_FIELD(MemMapParams, ucp_mem_map_params_t, memory_type);
SAME_VALUE(MemMapParams::kLength, UCP_MEM_MAP_PARAM_FIELD_LENGTH);
SAME_VALUE(MemMapParams::kMemoryType, UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE);

SAME_FIELD(RequestParam, ucp_request_param_t, op_attr_mask);
SAME_FIELD(RequestParam, ucp_request_param_t, flags);
SAME_FIELD(RequestParam, ucp_request_param_t, cb);
SAME_FIELD(RequestParam, ucp_request_param_t, user_data);
SAME_FIELD(RequestParam, ucp_request_param_t, memh);
SAME_VALUE(RequestParam::kCallback, UCP_OP_ATTR_FIELD_CALLBACK);
SAME_VALUE(RequestParam::kUserData, UCP_OP_ATTR_FIELD_USER_DATA);
SAME_VALUE(RequestParam::kFlags, UCP_OP_ATTR_FIELD_FLAGS);
SAME_VALUE(RequestParam::kMemh, UCP_OP_ATTR_FIELD_MEMH);
SAME_VALUE(RequestParam::kForce, UCP_EP_CLOSE_FLAG_FORCE);
SAME_VALUE(RequestParam::kReply, UCP_AM_SEND_FLAG_REPLY);
SAME_VALUE(RequestParam::kEager, UCP_AM_SEND_FLAG_EAGER);
SAME_VALUE(RequestParam::kRndv, UCP_AM_SEND_FLAG_RNDV);

SAME_FIELD(AmRecvParam, ucp_am_recv_param_t, recv_attr);
SAME_FIELD(AmRecvParam, ucp_am_recv_param_t, reply_ep);
SAME_VALUE(AmRecvParam::kReplyEp, UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
SAME_VALUE(AmRecvParam::kRndv, UCP_AM_RECV_ATTR_FLAG_RNDV);
SAME_FIELD(AmHandlerParam, ucp_am_handler_param_t, field_mask);
SAME_FIELD(AmHandlerParam, ucp_am_handler_param_t, id);
SAME_FIELD(AmHandlerParam, ucp_am_handler_param_t, cb);
SAME_FIELD(AmHandlerParam, ucp_am_handler_param_t, arg);
SAME_VALUE(AmHandlerParam::kId, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME_VALUE(AmHandlerParam::kCallback, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME_VALUE(AmHandlerParam::kArg, UCP_AM_HANDLER_PARAM_FIELD_ARG);

/// Whether two values are passed in the same way.
template <class Ours, class Theirs>
constexpr bool kSamePassing = [] {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> == std::is_void_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
  }
}();

template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
struct SameCall<Ours (*)(OurArguments...), Theirs(TheirArguments...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(OurArguments) == sizeof...(TheirArguments)) {
      return kSamePassing<Ours, Theirs> && (kSamePassing<OurArguments, TheirArguments> && ...);
    }
    return false;
  }();
};

#define FLOWTRAIN_UCX_SAME(prefix, name, result, arguments) \
  static_assert(SameCall<decltype(ucx::Calls::name), decltype(prefix##_##name)>::value, #name);
FLOWTRAIN_UCX_CALLS(FLOWTRAIN_UCX_SAME)

}  // namespace

int main() {}

#else

#include <cstdio>

int main() {
  std::fputs("skipped: no headers of UCX; install the wheel libucx-cu12\n", stderr);
  return 77;
}

#endif
