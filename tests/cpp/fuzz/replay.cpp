// Runs a fuzz target over a kept corpus, without a fuzzer. Each line of the file is an input in
// hexadecimal.

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
    // The last line printed names the input that failed.
    std::fprintf(stderr, "%s:%d\n", argv[1], inputs + 1);
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
      bytes.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  CHECK(inputs > 0);
}
