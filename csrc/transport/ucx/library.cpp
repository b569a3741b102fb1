#include "transport/ucx/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>

#include "base/error.hpp"

namespace flowtrain::transport::ucx {
namespace {

constexpr const char* kSystem = "libucp.so.0";

/// Path of a copy that this process has mapped. Wheels put a hash into the name.
std::optional<std::string> mapped_path() {
  std::optional<std::string> found;
  const auto look = [](dl_phdr_info* info, std::size_t, void* result) {
    const char* const slash = std::strrchr(info->dlpi_name, '/');
    const char* const name = slash != nullptr ? slash + 1 : info->dlpi_name;
    if (std::strncmp(name, "libucp.so", 9) != 0 && std::strncmp(name, "libucp-", 7) != 0) return 0;
    *static_cast<std::optional<std::string>*>(result) = info->dlpi_name;
    return 1;
  };
  ::dl_iterate_phdr(look, &found);
  return found;
}

std::string path_of(const void* symbol) {
  Dl_info info{};
  return ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kSystem;
}

/// Fills the library from its handle. Returns why it cannot be used, if so.
std::optional<std::string> fill(Library& library, void* handle) {
#define FLOWTRAIN_UCX_FIND(prefix, name, result, arguments)                                       \
  library.calls.name = reinterpret_cast<result(*) arguments>(::dlsym(handle, #prefix "_" #name)); \
  if (library.calls.name == nullptr) return "it lacks " #prefix "_" #name;
  FLOWTRAIN_UCX_CALLS(FLOWTRAIN_UCX_FIND)
#undef FLOWTRAIN_UCX_FIND
  library.path = path_of(reinterpret_cast<const void*>(library.calls.get_version));
  library.version = library.calls.get_version_string();
  unsigned major = 0, minor = 0, release = 0;
  library.calls.get_version(&major, &minor, &release);
  if (major != kMajor || minor < kMinor) {
    return "it has version " + library.version + ", not 1.14 or a later 1.x";
  }
  return std::nullopt;
}

/// Opens copies and keeps the reasons why they cannot be used.
class Finder {
 public:
  std::unique_ptr<Library> try_open(const std::string& name, const std::string& found) {
    // Without the global scope: the copies of other libraries stay theirs.
    void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* const why = ::dlerror();
      return reject(found, why != nullptr ? why : "it cannot be opened");
    }
    auto library = std::make_unique<Library>();
    library->found = found;
    if (const auto why = fill(*library, handle)) {
      ::dlclose(handle);
      return reject(found, *why);
    }
    return library;  // The handle is kept: UCX has threads and handlers of its own.
  }

  const std::string& reasons() const { return reasons_; }

 private:
  std::unique_ptr<Library> reject(const std::string& found, const std::string& why) {
    reasons_ += (reasons_.empty() ? "" : "; ") + found + ": " + why;
    return nullptr;
  }
  std::string reasons_;
};

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::equivalent(one, other, ignored);
}

std::unique_ptr<Library> find(const Search& search) {
  Finder finder;
  const auto mapped = mapped_path();
  if (!search.path.empty()) {
    if (mapped && !is_same_file(*mapped, search.path)) {
      throw UcxError("UCX " + search.path + ": this process has opened " + *mapped +
                     ", and two copies cannot be used; name that one, or none");
    }
    std::error_code none;
    // dlopen does not look into the current folder for a name without a slash.
    const bool is_here = std::filesystem::exists(search.path, none);
    const std::string path =
        is_here ? std::filesystem::absolute(search.path, none).string() : search.path;
    if (auto found = finder.try_open(path, "the copy that was named")) return found;
    throw UcxError("UCX " + search.path + " cannot be used: " + finder.reasons());
  }
  // A second copy beside one that is mapped would be bound to the symbols of the first.
  if (mapped) {
    if (auto found = finder.try_open(*mapped, "the copy that the process has opened")) return found;
  } else {
    if (auto found = finder.try_open(kSystem, "the system's copy")) return found;
    for (const std::string& other : search.others) {
      if (auto found = finder.try_open(other, other)) return found;
    }
  }
  throw UcxError("no UCX that can be used (" + finder.reasons() +
                 "); install libucx0 or nixl, or name the path of a libucp.so.0");
}

}  // namespace

const Library& open_library(const Search& search) {
  static std::mutex mutex;
  // Never destroyed: so are its handle and what UCX has started.
  static const Library* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    opened = find(search).release();
  } else if (!search.path.empty() && !is_same_file(opened->path, search.path)) {
    throw UcxError("UCX " + search.path + ": this process has opened " + opened->path +
                   ", and two copies cannot be used; name that one, or none");
  }
  return *opened;
}

void check(const Library& library, Status status, const char* call, const std::string& what) {
  if (status == kOk) return;
  throw UcxError(what + ": " + call + ": " + library.calls.status_string(status));
}

}  // namespace flowtrain::transport::ucx
