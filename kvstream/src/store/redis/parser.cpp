#include "store/redis/parser.hpp"

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <new>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

// What a reply may still allocate.
struct redis_parser::budget {
  std::size_t max_string = 0;
  std::size_t elements = 0;
  std::size_t bytes = 0;

  void renew() { elements = max_elements, bytes = 2 * max_string; }
};

namespace {

#if HIREDIS_MAJOR >= 1
using element_count = std::size_t;
#else
using element_count = int;
#endif

using kind = redis_value::kind;

redis_parser::budget& budget_of(const redisReadTask* task) {
  return *static_cast<redis_parser::budget*>(task->privdata);
}

// The object a task makes lies in its parent's array, which has its whole length before they are made; only the outermost
// is hiredis's to keep. Null tells hiredis to give up.
redis_value* place(const redisReadTask* task, kind what) {
  auto& left = budget_of(task);
  if (left.elements == 0) return nullptr;
  --left.elements;
  auto* value = task->parent
                    ? &static_cast<redis_value*>(task->parent->obj)->elements[static_cast<std::size_t>(task->idx)]
                    : new (std::nothrow) redis_value;
  if (value) value->what = what;
  return value;
}

void* make_string(const redisReadTask* task, char* text, std::size_t size) {
  auto& left = budget_of(task);
  if (size > left.max_string || size > left.bytes) return nullptr;
  left.bytes -= size;
  auto* value = place(task, task->type == REDIS_REPLY_ERROR    ? kind::error
                            : task->type == REDIS_REPLY_STATUS ? kind::status
                                                               : kind::string);
  if (value) value->text.assign(text, size);
  return value;
}

void* make_array(const redisReadTask* task, element_count count) {
  const auto n = static_cast<std::size_t>(count);
  if (n > budget_of(task).elements) return nullptr;
  auto* value = place(task, kind::array);
  if (value) value->elements.resize(n);
  return value;
}

void* make_integer(const redisReadTask* task, long long n) {
  auto* value = place(task, kind::integer);
  if (value) value->integer = n;
  return value;
}

void* make_nil(const redisReadTask* task) { return place(task, kind::nil); }

void free_value(void* value) { delete static_cast<redis_value*>(value); }

redisReplyObjectFunctions functions() {
  redisReplyObjectFunctions f{};
  f.createString = make_string;
  f.createArray = make_array;
  f.createInteger = make_integer;
  f.createNil = make_nil;
  f.freeObject = free_value;
  return f;
}

redisReplyObjectFunctions all_functions = functions();

}  // namespace

void redis_parser::free_reader::operator()(redisReader* r) const noexcept { redisReaderFree(r); }

redis_parser::redis_parser(std::size_t max_string)
    : max_string_(max_string),
      budget_(std::make_unique<budget>()),
      reader_(redisReaderCreateWithFunctions(&all_functions)) {
  if (!reader_) throw std::bad_alloc();
  budget_->max_string = max_string;
  budget_->renew();
  reader_->privdata = budget_.get();
}

redis_parser::~redis_parser() = default;

void redis_parser::feed(std::span<const char> bytes) {
  if (!broken_ && redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK) broken_ = true;
}

std::optional<result<redis_value>> redis_parser::next() {
  void* reply = nullptr;
  if (!broken_ && redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) broken_ = true;
  if (broken_) return result<redis_value>(errc::protocol);
  if (!reply) {
    // What is not whole yet is kept by the reader: no more of it than a string may have, and the line before it.
    if (reader_->len - reader_->pos <= max_string_ + 64) return std::nullopt;
    broken_ = true;
    return result<redis_value>(errc::protocol);
  }
  std::unique_ptr<redis_value> owned(static_cast<redis_value*>(reply));
  budget_->renew();
  return result<redis_value>(std::move(*owned));
}

void redis_bytes::free_bytes::operator()(char* c) const noexcept { redisFreeCommand(c); }

redis_bytes::redis_bytes(const redis_command& command) {
  std::vector<const char*> parts;
  std::vector<std::size_t> sizes;
  for (const auto part : command) {
    parts.push_back(part.data());
    sizes.push_back(part.size());
  }
  char* text = nullptr;
  const auto n = redisFormatCommandArgv(&text, static_cast<int>(parts.size()), parts.data(), sizes.data());
  if (n < 0) throw std::bad_alloc();
  bytes_.reset(text);
  size_ = static_cast<std::size_t>(n);
}

}  // namespace cokv::detail
