#include "cuda/staging.hpp"

#include <atomic>
#include <optional>
#include <utility>

#include "cuda/context.hpp"
#include "cuda/copy.hpp"
#include "cuda/driver.hpp"
#include "cuda/registration.hpp"
#include "memory/memfd.hpp"
#include "os/made_here.hpp"

namespace flowtrain::cuda {
namespace {

/// Memory, stream and counter of a staging. The driver uses them until the last fetch is done.
struct Work {
  Work(std::shared_ptr<const memory::Memory> of, memory::Copies copies, memory::OnDone told,
       const std::string& name)
      : segment(std::move(of)), what(name + ", read by the host"), on_done(std::move(told)) {
    if (copies == memory::Copies::kToHost) {
      host = memory::memfd().allocate({}, segment->bytes(), name + ".staging");
      registration.emplace(host->host(), host->bytes(), segment->ordinal(), what);
    }
    const ContextScope scope(segment->ordinal());
    FLOWTRAIN_CUDA(StreamCreate, what, &stream, CU_STREAM_NON_BLOCKING);
  }

  std::shared_ptr<const memory::Memory> segment;
  std::string what;
  memory::OnDone on_done;
  std::unique_ptr<memory::Memory> host;  // Null without copies.
  std::optional<HostRegistration> registration;
  CUstream stream = nullptr;
  std::atomic<std::uint64_t> done{0};
};

void tell(void* work) {
  auto& told = *static_cast<Work*>(work);
  told.done.fetch_add(1, std::memory_order_release);  // sync: staging.done
  told.on_done();
}

class Staging final : public memory::Staging {
 public:
  explicit Staging(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  ~Staging() override {
    if (made_here_ && is_idle()) return;
    // Left until the process ends, as the device writes it, or it is the parent's.
    static_cast<void>(work_.release());
  }

  std::byte* data() const noexcept override {
    return work_->host ? work_->host->host()
                       : reinterpret_cast<std::byte*>(work_->segment->address());
  }
  std::uint64_t bytes() const noexcept override { return work_->segment->bytes(); }
  memory::StreamHandle stream() const noexcept override {
    return reinterpret_cast<memory::StreamHandle>(work_->stream);
  }
  void fetch(std::uint64_t offset, std::uint64_t bytes) override {
    const int device = work_->segment->ordinal();
    if (work_->host) {
      copy_to_host(device, data() + offset, work_->segment->address() + offset, bytes,
                   work_->stream);
    }
    const ContextScope scope(device);
    FLOWTRAIN_CUDA(LaunchHostFunc, work_->what, work_->stream, tell, work_.get());
    ++fetches_;
  }
  std::uint64_t done() const noexcept override {
    return work_->done.load(std::memory_order_acquire);  // sync: staging.done
  }
  void check() const override {
    const ContextScope scope(work_->segment->ordinal());
    const CUresult found = driver().StreamQuery(work_->stream);
    if (found != CUDA_ERROR_NOT_READY) cuda::check(found, "cuStreamQuery", work_->what);
  }

 private:
  /// Ends the stream, if nothing is under way on it.
  bool is_idle() noexcept {
    try {
      const ContextScope scope(work_->segment->ordinal());
      return done() == fetches_ && driver().StreamQuery(work_->stream) == CUDA_SUCCESS &&
             driver().StreamDestroy(work_->stream) == CUDA_SUCCESS;
    } catch (const Error&) {
      return false;  // The driver is shutting down.
    }
  }

  std::unique_ptr<Work> work_;
  std::uint64_t fetches_ = 0;
  os::MadeHere made_here_;
};

}  // namespace

std::unique_ptr<memory::Staging> make_staging(std::shared_ptr<const memory::Memory> segment,
                                              memory::Copies copies, memory::OnDone on_done,
                                              const std::string& name) {
  return std::make_unique<Staging>(
      std::make_unique<Work>(std::move(segment), copies, std::move(on_done), name));
}

}  // namespace flowtrain::cuda
