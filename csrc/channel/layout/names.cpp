#include "channel/layout/names.hpp"

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "base/relaxed.hpp"

namespace flowtrain::channel {
namespace {

constexpr std::size_t kMaxNameBytes = RelaxedText::kMaxBytes;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string quoted(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text) {
    if (is_control(c)) {
      out += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    } else {
      out += c;
    }
  }
  return out + "'";
}

void check_name(const std::string& what, const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '.' ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    throw BadArgument(what + " " + quoted(name) + ": give 1 to " + std::to_string(kMaxNameBytes) +
                      " letters, digits, '.', '_' or '-', not starting with '.'");
  }
}

void check_label(const std::string& label) {
  if (label.size() > kMaxNameBytes) {
    throw BadArgument("label " + quoted(label) + ": " + std::to_string(label.size()) +
                      " bytes, at most " + std::to_string(kMaxNameBytes));
  }
  if (std::any_of(label.begin(), label.end(), is_control)) {
    throw BadArgument("label " + quoted(label) + ": has control characters; leave them out");
  }
}

}  // namespace flowtrain::channel
