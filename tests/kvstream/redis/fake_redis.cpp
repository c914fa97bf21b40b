#include "kvstream/redis/fake_redis.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <charconv>

#include "cokv/runtime/result.hpp"
#include "store/redis/slots.hpp"

namespace cokv::test {
namespace {

using words = std::vector<std::string>;

std::string status(std::string_view text) { return "+" + std::string(text) + "\r\n"; }
std::string error(std::string_view text) { return "-" + std::string(text) + "\r\n"; }
std::string integer(long long n) { return ":" + std::to_string(n) + "\r\n"; }
std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}
const std::string nil = "$-1\r\n";

long long number_in(std::string_view text) {
  long long n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

// A command off the front of what came: "*N\r\n$len\r\n...\r\n", which is all that clients send.
// Throws when it is none: the network may have flipped a bit of it.
std::optional<words> take_command(std::string& in) {
  const auto within = [](long long n, long long least, long long most) {
    if (n < least || n > most) throw std::runtime_error("no command");
    return static_cast<std::size_t>(n);
  };
  std::size_t at = 0;
  const auto line = [&]() -> std::optional<std::string_view> {
    const auto end = in.find("\r\n", at);
    if (end == in.npos) return std::nullopt;
    const auto out = std::string_view(in).substr(at, end - at);
    at = end + 2;
    return out;
  };
  const auto head = line();
  if (!head) return std::nullopt;
  words out;
  if (!head->starts_with('*')) within(0, 1, 1);
  for (auto n = within(number_in(head->substr(1)), 1, 1 << 16); n > 0; --n) {
    const auto size = line();
    if (!size) return std::nullopt;
    if (!size->starts_with('$')) within(0, 1, 1);
    const auto bytes = within(number_in(size->substr(1)), 0, 1 << 24);
    if (in.size() < at + bytes + 2) return std::nullopt;
    out.push_back(in.substr(at, bytes));
    at += bytes + 2;
  }
  in.erase(0, at);
  return out;
}

}  // namespace

void fake_redis_slots::share_out() {
  for (std::size_t s = 0; s < owner.size(); ++s) owner[s] = static_cast<int>(s * nodes.size() / owner.size());
}

void fake_redis::start(std::shared_ptr<fake_redis> self, const endpoint& on) {
  auto door = network::of(self->ex_).listen(on);
  REQUIRE(door.has_value());
  self->door_ = std::move(*door);
  self->at = {on.host, self->door_.local_endpoint().port};
  asio::co_spawn(self->ex_, run(self), asio::detached);
}

void fake_redis::stop() {
  door_.close();
  break_connections();
}

void fake_redis::break_connections() {
  for (const auto& weak : std::exchange(streams_, {}))
    if (const auto stream = weak.lock()) stream->close();
}

awaitable<void> fake_redis::run(std::shared_ptr<fake_redis> self) {
  while (auto stream = co_await self->door_.async_accept(as_result)) {
    auto shared = std::make_shared<byte_stream>(std::move(*stream));
    self->streams_.push_back(shared);
    asio::co_spawn(self->ex_, serve(self, std::move(shared)), asio::detached);
  }
}

awaitable<void> fake_redis::serve(std::shared_ptr<fake_redis> self, std::shared_ptr<byte_stream> stream) {
  std::string in, out;
  std::vector<char> bytes(16 << 10);
  bool authenticated = self->password.empty(), asking = false, silent = false;
  for (;;) {
    auto n = co_await stream->async_read_some(asio::buffer(bytes), as_result);
    if (!n) co_return;
    in.append(bytes.data(), *n);
    out.clear();
    try {
      while (auto command = take_command(in)) {
        ++self->commands;
        auto made_up = self->instead ? self->instead(*command) : std::nullopt;
        silent = silent || (made_up && made_up->empty());
        if (!silent) out += made_up ? *made_up : self->answer(*command, authenticated, asking);
      }
    } catch (const std::exception&) {
      stream->close();
      co_return;
    }
    auto written = co_await asio::async_write(*stream, asio::buffer(out), as_result);
    if (!written) co_return;
  }
}

fake_redis_nodes::fake_redis_nodes(const asio::any_io_executor& ex, int count) {
  if (count > 1) slots = std::make_shared<fake_redis_slots>();
  for (int i = 0; i < count; ++i) {
    nodes.push_back(std::make_shared<fake_redis>(ex, slots, i));
    fake_redis::start(nodes.back());
    if (slots) slots->nodes.push_back(nodes.back()->at);
  }
  if (slots) slots->share_out();
}

fake_redis_nodes::~fake_redis_nodes() {
  for (const auto& n : nodes) n->stop();
}

std::string fake_redis_nodes::url() const {
  std::string out = "redis://";
  for (const auto& n : nodes) out += (n == nodes.front() ? "" : ",") + n->at.to_string();
  return out;
}

fake_redis::entry* fake_redis::find(const std::string& key) {
  const auto at = kept.find(key);
  if (at == kept.end()) return nullptr;
  if (at->second.until && *at->second.until <= clock::of(ex_).now()) {
    kept.erase(at);
    return nullptr;
  }
  return &at->second;
}

std::size_t fake_redis::used() const {
  std::size_t n = 0;
  for (const auto& [key, e] : kept) n += key.size() + e.value.size();
  return n;
}

std::string fake_redis::redirect(const words& keys, bool asking) {
  if (!slots) return {};
  const int slot = detail::slot_of(keys.front());
  for (const auto& key : keys)
    if (detail::slot_of(key) != slot) return error("CROSSSLOT Keys in request don't hash to the same slot");
  const auto say = [&](const char* word, int node) {
    const auto& to = slots->nodes[static_cast<std::size_t>(node)];
    return error(std::string(word) + " " + std::to_string(slot) + " " + to.host + ":" + std::to_string(to.port));
  };
  const auto missing = std::ranges::count_if(keys, [&](const auto& key) { return find(key) == nullptr; });
  const auto moving = slots->importing.find(slot);
  if (slots->owner[static_cast<std::size_t>(slot)] == number) {
    if (moving == slots->importing.end() || missing == 0) return {};
    return missing == static_cast<long>(keys.size()) ? say("ASK", moving->second) : error("TRYAGAIN Multiple keys");
  }
  if (asking && moving != slots->importing.end() && moving->second == number)
    return keys.size() > 1 && missing != 0 ? error("TRYAGAIN Multiple keys") : std::string();
  if (slots->owner[static_cast<std::size_t>(slot)] < 0) return error("CLUSTERDOWN Hash slot not served");
  return say("MOVED", slots->owner[static_cast<std::size_t>(slot)]);
}

std::string fake_redis::answer(const words& command, bool& authenticated, bool& asking) {
  const auto& name = command.front();
  if (name == "AUTH") {
    const bool right = command.back() == password && (command.size() == 2 || command.at(1) == user);
    authenticated = authenticated || right;
    return right ? status("OK") : error("WRONGPASS invalid username-password pair or user is disabled.");
  }
  if (!authenticated) return error("NOAUTH Authentication required.");
  if (name == "ASKING") {
    asking = true;
    return status("OK");
  }
  if (name == "CLUSTER") {
    if (!slots) return error("ERR This instance has cluster support disabled");
    std::string ranges;
    int count = 0;
    for (std::size_t s = 0; s < slots->owner.size();) {
      auto end = s;
      while (end < slots->owner.size() && slots->owner[end] == slots->owner[s]) ++end;
      if (slots->owner[s] >= 0) {
        const auto& to = slots->nodes[static_cast<std::size_t>(slots->owner[s])];
        ranges += "*3\r\n" + integer(static_cast<long long>(s)) + integer(static_cast<long long>(end) - 1) + "*2\r\n" +
                  bulk(to.host) + integer(to.port);
        ++count;
      }
      s = end;
    }
    return "*" + std::to_string(count) + "\r\n" + ranges;
  }
  const bool asked = std::exchange(asking, false);
  words keys;
  if (name == "EVAL") {
    const auto count = static_cast<std::size_t>(number_in(command.at(2)));
    if (count == 0 || command.size() < 5 || count > command.size() - 4) return error("ERR wrong number of arguments");
    keys.assign(command.begin() + 3, command.begin() + 3 + static_cast<std::ptrdiff_t>(count));
  } else if (name == "UNLINK")
    keys.assign(command.begin() + 1, command.end());
  else
    keys = {command.at(1)};
  if (keys.empty()) return error("ERR wrong number of arguments");
  if (auto elsewhere = redirect(keys, asked); !elsewhere.empty()) return elsewhere;
  auto* there = find(keys.front());
  if (name == "GET") return there ? bulk(there->value) : nil;
  if (name == "EXISTS") return integer(there != nullptr);
  if (name == "SET") {
    if (limit_bytes != 0 && used() + command.at(2).size() > limit_bytes)
      return error("OOM command not allowed when used memory > 'maxmemory'.");
    kept[command.at(1)] = {command.at(2), clock::of(ex_).now() + std::chrono::seconds(number_in(command.at(4)))};
    return status("OK");
  }
  if (name == "UNLINK") {
    long long n = 0;
    for (const auto& key : keys) n += kept.erase(key) != 0;
    return integer(n);
  }
  if (name == "PEXPIRE") {
    if (there) there->until = clock::of(ex_).now() + std::chrono::milliseconds(number_in(command.at(2)));
    return integer(there != nullptr);
  }
  if (name == "EVAL") return script(command);
  return error("ERR unknown command");
}

std::string fake_redis::script(const words& command) {
  const auto& text = command.at(1);
  const auto count = static_cast<std::size_t>(number_in(command.at(2)));
  const words keys(command.begin() + 3, command.begin() + 3 + static_cast<std::ptrdiff_t>(count));
  const words args(command.begin() + 3 + static_cast<std::ptrdiff_t>(count), command.end());
  const auto now = clock::of(ex_).now();
  auto* old = find(keys[0]);
  if (text.find("PERSIST") != text.npos) {  // commit
    const auto own = 1 + static_cast<std::size_t>(number_in(args.at(3)));
    if (old && old->value == args.at(0)) return integer(1);
    if (old && args.at(2) == "0") {
      for (std::size_t i = 1; i < own; ++i) kept.erase(keys[i]);
      return integer(0);
    }
    if (old && old->value != args.at(4)) return bulk(old->value);
    const auto life = std::chrono::milliseconds(number_in(args.at(1)));
    for (std::size_t i = 1; i < own; ++i)
      if (!find(keys[i])) return integer(-1);
    if (limit_bytes != 0 && used() + args.at(0).size() > limit_bytes)
      return error("OOM command not allowed when used memory > 'maxmemory'.");
    for (std::size_t i = 1; i < own; ++i)
      find(keys[i])->until = life.count() == 0 ? std::optional<time_point>() : now + life + std::chrono::seconds(1);
    for (std::size_t i = own; i < keys.size(); ++i)
      if (auto* piece = find(keys[i])) piece->until = now + std::chrono::milliseconds(number_in(args.at(5)));
    kept[keys[0]] = {args.at(0), life.count() == 0 ? std::optional<time_point>() : now + life};
    return integer(1);
  }
  if (!old || old->value != args.at(0)) return integer(0);
  if (text.find("UNLINK") != text.npos) {  // drop
    for (const auto& key : keys) kept.erase(key);
    return integer(1);
  }
  for (std::size_t i = 1; i < keys.size(); ++i) {  // refresh
    auto* piece = find(keys[i]);
    if (!piece) return integer(0);
    if (args.at(1) != "0") piece->until = now + std::chrono::milliseconds(number_in(args.at(1)) + 1000);
  }
  if (args.at(1) != "0") old->until = now + std::chrono::milliseconds(number_in(args.at(1)));
  return integer(1);
}

}  // namespace cokv::test
