#include "channel/layout/names.hpp"

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "base/relaxed.hpp"

namespace flowtrain::channel {
namespace {

constexpr std::size_t kMaxNameBytes = RelaxedText::kMaxBytes;

}  // namespace

void check_name(const std::string& what, const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '.' ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    throw BadArgument(what + " '" + name + "': give 1 to " + std::to_string(kMaxNameBytes) +
                      " letters, digits, '.', '_' or '-', not starting with '.'");
  }
}

void check_label(const std::string& label) {
  if (label.size() > kMaxNameBytes) {
    throw BadArgument("label '" + label + "': " + std::to_string(label.size()) +
                      " bytes, at most " + std::to_string(kMaxNameBytes));
  }
}

}  // namespace flowtrain::channel
