#include "store/redis/state.hpp"

namespace cokv::detail {
namespace {

using kind = redis_value::kind;

// KEYS: the head, its pieces, the pieces of the head that it replaces. ARGV: the head, milliseconds to live or 0, whether
// to replace what is there, how many of the pieces are its own, the head that it replaces or nothing, and how long the
// pieces of that stay for those who read them. The answer: 1 it is there now, 0 another one stays, -1 a piece is missing,
// or the head that is in its place and was not named: nothing is replaced whose pieces would be left behind. A head's
// life ends before its pieces' do.
constexpr std::string_view commit_script =
    "local old = redis.call('GET', KEYS[1]) "
    "local own = ARGV[4] + 1 "
    "if old == ARGV[1] then return 1 end "
    "if old and ARGV[3] == '0' then "
    "for i = 2, own do redis.call('UNLINK', KEYS[i]) end return 0 end "
    "if old and old ~= ARGV[5] then return old end "
    "for i = 2, own do "
    "if redis.call('EXISTS', KEYS[i]) == 0 then return -1 end end "
    "for i = 2, own do "
    "if ARGV[2] == '0' then redis.call('PERSIST', KEYS[i]) "
    "else redis.call('PEXPIRE', KEYS[i], ARGV[2] + 1000) end end "
    "for i = own + 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[6]) end "
    "if ARGV[2] == '0' then redis.call('SET', KEYS[1], ARGV[1]) "
    "else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end "
    "return 1";

// KEYS: the head, its pieces. ARGV: the head. The answer: whether it was there.
constexpr std::string_view drop_script =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
    "for i = 1, #KEYS do redis.call('UNLINK', KEYS[i]) end return 1";

// KEYS as above. ARGV: the head, milliseconds to live or 0. The answer: whether it is whole.
constexpr std::string_view refresh_script =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
    "for i = 2, #KEYS do "
    "if redis.call('TOUCH', KEYS[i]) == 0 then return 0 end "
    "if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[i], ARGV[2] + 1000) end end "
    "if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 1";

constexpr const char* grace_ms = "60000";

std::string ttl_ms(const redis_state& s) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(s.options.ttl).count());
}

std::vector<std::string> names_of(const redis_head& head) {
  auto names = piece_names(head);
  names.insert(names.begin(), head_name(head.ns, head.key));
  return names;
}

awaitable<result<redis_value>> run_script(std::shared_ptr<redis_state> s, std::string_view script,
                                          std::vector<std::string> names, std::vector<std::string> arguments,
                                          unsigned kinds) {
  const auto count = std::to_string(names.size());
  redis_command command{"EVAL", script, count};
  command.insert(command.end(), names.begin(), names.end());
  command.insert(command.end(), arguments.begin(), arguments.end());
  co_return co_await s->cluster->execute(slot_of(names.front()), std::move(command), 0, kinds);
}

awaitable<result<told>> yes_or_no(awaitable<result<redis_value>> asked) {
  auto reply = co_await std::move(asked);
  if (!reply) co_return reply.error();
  co_return reply->integer == 1 ? told::yes : told::no;
}

}  // namespace

awaitable<result<std::optional<redis_head>>> read_head(std::shared_ptr<redis_state> s, namespace_id ns, block_key key) {
  const auto name = head_name(ns, key);
  auto reply = co_await s->cluster->execute(slot_of(name), {"GET", name}, 1024, one_of(kind::string, kind::nil));
  if (!reply) co_return reply.error();
  if (reply->is(kind::nil)) co_return std::optional<redis_head>();
  auto head = redis_head::decode(reply->text, ns, key);
  if (head) co_return head;
  ++s->counters.refused;
  co_return errc::digest_mismatch;
}

awaitable<result<told>> commit_block(std::shared_ptr<redis_state> s, redis_head head, bool force) {
  auto names = names_of(head);
  const auto own = names.size();
  std::vector<std::string> arguments{head.encode(),           ttl_ms(*s), force ? "1" : "0",
                                     std::to_string(own - 1), "",         grace_ms};
  for (int tries = 0; tries < commit_tries; ++tries) {  // others may replace what is there
    auto reply = co_await run_script(s, commit_script, names, arguments, one_of(kind::integer, kind::string));
    if (!reply) co_return reply.error();
    if (reply->is(kind::integer)) {
      if (reply->integer == -1) co_return errc::not_found;
      co_return reply->integer == 1 ? told::yes : told::no;
    }
    names.resize(own);
    if (const auto old = redis_head::decode(reply->text, head.ns, head.key))
      for (auto& name : piece_names(*old)) names.push_back(std::move(name));
    arguments[4] = std::move(reply->text);
  }
  co_return errc::in_use;
}

awaitable<result<told>> drop_block(std::shared_ptr<redis_state> s, redis_head head) {
  std::vector<std::string> arguments{head.encode()};
  return yes_or_no(run_script(std::move(s), drop_script, names_of(head), std::move(arguments), one_of(kind::integer)));
}

awaitable<result<told>> refresh_block(std::shared_ptr<redis_state> s, redis_head head) {
  std::vector<std::string> arguments{head.encode(), ttl_ms(*s)};
  return yes_or_no(run_script(s, refresh_script, names_of(head), std::move(arguments), one_of(kind::integer)));
}

awaitable<void> drop_pieces(std::shared_ptr<redis_state> s, redis_head head) {
  const auto names = piece_names(head);
  redis_command command{"UNLINK"};
  command.insert(command.end(), names.begin(), names.end());
  (void)co_await s->cluster->execute(slot_of(names.front()), std::move(command), 0, one_of(kind::integer));
}

}  // namespace cokv::detail
