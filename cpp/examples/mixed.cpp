// Rust and C++ coroutines of one process in one order. Sixteen coroutines of each language, at
// alternating levels, are spawned, the least urgent first. They must run by level and, within a
// level, in the order of their spawns; otherwise the exit status is 1.
#include <cstdio>
#include <upshift/upshift.hpp>
#include <vector>

using namespace upshift;

extern "C" int mixed_spawn(int level, void (*note)(void* to, int level), void* to);

struct event {
  char language;
  int level;
};

task<> note_twice(std::vector<event>& to, int level_number) {
  for (int i = 0; i < 2; ++i) {
    to.push_back({'C', level_number});
    co_await yield_now();
  }
}

task<bool> mix() {
  std::vector<event> events;
  for (int level_number = 60; level_number > 28; level_number -= 2) {
    spawn(note_twice(events, level_number), level{level_number}).detach();
    // The Rust coroutine alternately has the level of this C++ coroutine and a level of its own.
    const auto note = [](void* to, int level) { static_cast<std::vector<event>*>(to)->push_back({'R', level}); };
    mixed_spawn(level_number % 4 == 0 ? level_number : level_number + 1, note, &events);
  }
  while (events.size() < 64) co_await sleep(std::chrono::milliseconds(1));
  bool in_order = true;
  for (std::size_t i = 0; i < events.size(); ++i) {
    std::printf("%c%d%c", events[i].language, events[i].level, i + 1 == events.size() ? '\n' : ' ');
    if (i == 0) continue;
    in_order &= events[i - 1].level <= events[i].level;
  }
  // Coroutines of one level alternate: C R C R at each level that both languages use.
  for (std::size_t i = 0; i + 3 < events.size(); ++i) {
    const bool begins = i == 0 || events[i - 1].level != events[i].level;
    if (begins && events[i + 3].level == events[i].level)
      in_order &= events[i].language == 'C' && events[i + 1].language == 'R' && events[i + 2].language == 'C' && events[i + 3].language == 'R';
  }
  std::printf("%s\n", in_order ? "in order" : "NOT in order");
  co_return in_order;
}

int main() {
  config settings;
  settings.vcpus = 1;
  settings.main_level = 0;
  return runtime(settings).block_on(mix()) ? 0 : 1;
}
