// Runs a fuzz target over a kept corpus, where there is no fuzzer: each line of a file is an input
// in hexadecimal.

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/input.hpp"

int main(int argc, char** argv) {
  CHECK(argc == 2);
  std::ifstream file(argv[1]);
  CHECK(file);
  int inputs = 0;
  for (std::string line; std::getline(file, line); ++inputs) {
    // Seen only where the next line is never reached.
    std::fprintf(stderr, "%s:%d\n", argv[1], inputs + 1);
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
      bytes.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  CHECK(inputs > 0);
}
