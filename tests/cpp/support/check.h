#pragma once
// The test frame of the C++ tests: one program for each *_test.cc, which includes this once.
//
//   TEST(RingOfFour) { CHECK(...); CHECK_EQ(actual, expected); }
//
// Run without arguments for all tests, or with a part of a name for those that contain it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace horoacc::check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
};

/// Ends the process at once: a check may fail in any thread, or in a forked child.
[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::fflush(nullptr);
#ifdef HOROACC_CHECK_ABORTS  // libFuzzer keeps the input of a signal
  std::abort();
#endif
  std::_Exit(1);
}

/// A value in a message; enums as numbers, and what has no text form as its size.
template <typename T>
std::string Show(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<T>) {
    text << static_cast<long long>(value);
  } else if constexpr (requires { text << value; }) {
    text << value;
  } else {
    text << "<" << sizeof(T) << " bytes>";
  }
  return text.str();
}

/// The integers that std::cmp_equal takes: a literal is an int, and a size often is not.
template <typename T>
inline constexpr bool kIsNumber =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char>;

template <typename A, typename B>
void CheckEqual(const A& actual, const B& expected, const char* text, const char* file, int line) {
  bool equal = false;
  if constexpr (kIsNumber<A> && kIsNumber<B>) {
    equal = std::cmp_equal(actual, expected);
  } else {
    equal = actual == expected;
  }
  if (!equal) Fail(file, line, std::string(text) + ": " + Show(actual) + " != " + Show(expected));
}

inline int RunTests(const char* filter) {
  int passed = 0;
  for (const Test& test : Tests()) {
    if (filter != nullptr && std::strstr(test.name, filter) == nullptr) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.body();
    ++passed;
  }
  if (passed == 0) {
    std::fprintf(stderr, "no test %s\n", filter != nullptr ? filter : "is registered");
    return 1;
  }
  std::printf("%d passed, 0 failed\n", passed);
  return 0;
}

}  // namespace horoacc::check

#define TEST(name)                                                                     \
  static void Test##name();                                                            \
  static const ::horoacc::check::Registration kRegistration##name{#name, &Test##name}; \
  static void Test##name()

#define CHECK(...)                                                                         \
  do {                                                                                     \
    if (!(__VA_ARGS__)) ::horoacc::check::Fail(__FILE__, __LINE__, "CHECK " #__VA_ARGS__); \
  } while (false)

#define CHECK_EQ(actual, expected) \
  ::horoacc::check::CheckEqual(actual, expected, #actual " == " #expected, __FILE__, __LINE__)

#ifndef HOROACC_CHECK_WITHOUT_MAIN
int main(int argc, char** argv) { return ::horoacc::check::RunTests(argc > 1 ? argv[1] : nullptr); }
#endif
