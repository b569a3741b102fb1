#include "transport/ucx/engine.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "transport/address.hpp"
#include "transport/ucx/devices.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport {
namespace ucx {
namespace {

/// Settings of a context, on top of those in the environment.
class Settings {
 public:
  explicit Settings(const Library& library) : library_(library) {
    check(library, library.calls.config_read(nullptr, nullptr, &config_), "ucp_config_read", "UCX");
  }
  ~Settings() { library_.calls.config_release(config_); }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  void set(const std::string& name, const std::string& value) {
    check(library_, library_.calls.config_modify(config_, name.c_str(), value.c_str()),
          "ucp_config_modify", "UCX setting " + name + "=" + value);
  }
  const Config* get() const { return config_; }

 private:
  const Library& library_;
  Config* config_ = nullptr;
};

}  // namespace

Engine::Engine(const Library& library, const std::string& host, const UcxOptions& options,
               GrantTable& grants)
    : library_(library),
      host_(host),
      door_(library.calls, grants),
      reads_devices_(options.gpu_direct) {
  try {
    start(options);
  } catch (...) {
    stop();
    throw;
  }
}

Engine::~Engine() { stop(); }

void Engine::start(const UcxOptions& options) {
  const std::string what = "transport UCX at " + host_;
  const auto chosen = ucx_settings(host_, options);
  devices_ = chosen.at("NET_DEVICES");
  Settings settings(library_);
  for (const auto& [name, value] : chosen) settings.set(name, value);
  const Params params{Params::kFeatures, Params::kAm | Params::kWakeup};
  check(library_, calls().init_version(kMajor, kMinor, &params, settings.get(), &context_),
        "ucp_init", what);
  if (reads_devices_) check_gpu_direct();
  worker_ = std::make_shared<Worker>(library_, context_, &Engine::on_message<true>, this, what);
}

void Engine::check_gpu_direct() const {
  const std::string what = "transport UCX at " + host_ + ": the path gpudirect needs ";
  const bool has_rdma = devices_.find(':') != std::string::npos;
  if (!has_rdma) {
    throw UcxError(what + "an RDMA device on the card of that interface, which has none (" +
                   devices_ + "); give the address of another interface, or the path ucx");
  }
  ContextAttr found{ContextAttr::kMemoryTypes, 0, 0, 0};
  check(library_, calls().context_query(context_, &found), "ucp_context_query", what);
  if ((found.memory_types >> kCudaMemory & 1) == 0) {
    throw UcxError(what + "a UCX that was built with CUDA and finds its driver, and " +
                   library_.path + " does not; give another copy, or the path ucx");
  }
}

std::shared_ptr<Worker> Engine::make_worker() {
  return std::make_shared<Worker>(library_, context_, &Engine::on_message<false>, this,
                                  "transport UCX at " + host_);
}

/// @param kIsOpen  Whether peers may open sessions.
template <bool kIsOpen>
Status Engine::on_message(void* engine, const void* header, std::size_t header_bytes, void* data,
                          std::size_t bytes, const AmRecvParam* param) {
  auto& self = *static_cast<Engine*>(engine);
  // Without an endpoint for answers, nobody has said which peer it comes from.
  if ((param->recv_attr & AmRecvParam::kReplyEp) == 0) return kOk;
  const bool announced = (param->recv_attr & AmRecvParam::kRndv) != 0;
  const auto found = self.endpoints.find(param->reply_ep);
  if (found != self.endpoints.end()) {
    return found->second->on_message(header, header_bytes, data, bytes, announced);
  }
  if (kIsOpen) {
    self.door_.on_message(param->reply_ep, header, header_bytes, data, bytes, announced);
  }
  return kOk;
}

void Engine::stop() noexcept {
  for (const Region& region : regions_) calls().mem_unmap(context_, region.handle);
  worker_.reset();
  if (context_ != nullptr) calls().cleanup(context_);
}

void Engine::add_region(std::byte* data, std::uint64_t bytes, int memory_type) {
  constexpr auto kFields =
      MemMapParams::kAddress | MemMapParams::kLength | MemMapParams::kMemoryType;
  const MemMapParams params{kFields, data, bytes, 0, 0, memory_type};
  Mem* handle = nullptr;
  check(library_, calls().mem_map(context_, &params, &handle), "ucp_mem_map",
        "transport UCX: a region of " + std::to_string(bytes) + " bytes cannot be registered");
  regions_.push_back({data, bytes, handle});
}

void Engine::remove_region(const std::byte* data) noexcept {
  const auto found = std::ranges::find(regions_, data, &Region::data);
  if (found == regions_.end()) return;
  calls().mem_unmap(context_, found->handle);
  regions_.erase(found);
}

Mem* Engine::handle_of(const std::byte* data, std::uint64_t bytes) const {
  for (const Region& region : regions_) {
    if (data >= region.data && data + bytes <= region.data + region.bytes) return region.handle;
  }
  return nullptr;
}

}  // namespace ucx

std::map<std::string, std::string> ucx_settings(const std::string& host,
                                                const UcxOptions& options) {
  std::map<std::string, std::string> settings = options.settings;
  // Processes of one host have the pool.
  settings.try_emplace("TLS", "^sm");
  settings.try_emplace("NET_DEVICES", ucx::devices_of(address_of(host, "0").storage));
  // The owner reads from the peer, where a device can: no key for its memory leaves it.
  settings.try_emplace("RNDV_SCHEME", "get_zcopy");
  // Of UCX's own 8 and 64 KiB, large payloads over TCP are a third slower.
  settings.try_emplace("TCP_TX_SEG_SIZE", "256k");
  settings.try_emplace("TCP_RX_SEG_SIZE", "256k");
  // Otherwise a connection that a firewall drops blocks the thread of the transport for minutes.
  settings.try_emplace("TCP_CONN_NB", "y");
  // Puts over TCP are not checked.
  settings.insert_or_assign("TCP_PUT_ENABLE", std::string("n"));
  return settings;
}

}  // namespace flowtrain::transport
