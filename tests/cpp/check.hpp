#pragma once

#include <cstdio>
#include <cstdlib>

/// Aborts the test with file, line and text if a condition is false, in any build type.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#define CHECK_THROWS(expression, kind)                                                      \
  do {                                                                                      \
    bool thrown = false;                                                                    \
    try {                                                                                   \
      static_cast<void>(expression);                                                        \
    } catch (const kind&) {                                                                 \
      thrown = true;                                                                        \
    }                                                                                       \
    if (!thrown) {                                                                          \
      std::fprintf(stderr, "%s:%d: %s did not throw %s\n", __FILE__, __LINE__, #expression, \
                   #kind);                                                                  \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
