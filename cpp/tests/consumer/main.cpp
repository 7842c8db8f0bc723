// A program outside this tree.
#include <upshift/upshift.hpp>

int main() {
  const int n = upshift::run([]() -> upshift::task<int> {
    auto handle = upshift::spawn([]() -> upshift::task<int> { co_return 7; }, upshift::level{4});
    co_return co_await handle;
  }());
  return n == 7 ? 0 : 1;
}
