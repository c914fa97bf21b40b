#include "openai/kept_answers.hpp"

#include <algorithm>

namespace cokv::openai {

kept_answer::kept_answer(answer_name name, std::shared_ptr<std::size_t> held, std::size_t ahead)
    : name_(std::move(name)), held_(std::move(held)), ahead_(ahead) {}

kept_answer::~kept_answer() { *held_ -= bytes_.size(); }

std::uint64_t kept_answer::slowest() const noexcept {
  const auto found = std::ranges::min_element(at_);
  return found == at_.end() ? before_ + bytes_.size() : *found;
}

// Not before half of it can go: else each piece that is read would move all that is behind it.
void kept_answer::trim() {
  const auto read = static_cast<std::size_t>(slowest() - before_);
  if (!passing_ || read == 0 || read < bytes_.size() / 2) return;
  bytes_ = bytes_.substr(read);
  before_ += read;
  *held_ -= read;
}

void kept_answer::tell() const {
  for (const auto& f : watchers_) f();
}

kept_answer::reader::reader(std::shared_ptr<kept_answer> of, std::function<void()> on_change)
    : of_(std::move(of)), told_(of_->watch(std::move(on_change))), at_(of_->at_.insert(of_->at_.end(), of_->before_)) {
  ++of_->visits_;
  of_->tell();
}

kept_answer::reader::~reader() {
  of_->unwatch(told_);
  of_->at_.erase(at_);
  of_->trim();
  of_->tell();
}

std::string_view kept_answer::reader::ahead() const {
  return std::string_view(of_->bytes_).substr(static_cast<std::size_t>(*at_ - of_->before_));
}

void kept_answer::reader::took(std::size_t bytes) {
  *at_ += std::min(bytes, ahead().size());
  of_->trim();
  if (of_->passing_) of_->tell();
}

kept_answers::visit kept_answers::ask(const answer_name& name, time_point now) {
  (void)expire(now);
  if (const auto h = holders_.find(name.holder()); h != holders_.end())
    if (const auto at = h->second.answers.find(name.key()); at != h->second.answers.end()) {
      const auto& a = at->second;
      if (!(a->name().request() == name.request())) return {found::other_request, nullptr};
      return a->passing() ? visit{found::passing, nullptr} : visit{found::here, a};
    }
  if (total_ >= limits_.answers && !make_room()) return {found::full, nullptr};
  auto a = std::make_shared<kept_answer>(name, held_, limits_.ahead);
  holders_[name.holder()].answers.emplace(name.key(), a);
  ++total_;
  return {found::fresh, std::move(a)};
}

void kept_answers::add(kept_answer& a, std::string_view bytes) {
  if (a.over_) return;
  const auto fits = [&] { return *held_ + bytes.size() <= limits_.bytes; };
  if (a.listed_ && !a.passing_) {
    const bool small = a.bytes_.size() + bytes.size() <= limits_.answer_bytes;
    while (small && !fits() && make_room()) continue;
    a.passing_ = !small || !fits();
  }
  a.bytes_.append(bytes);
  *held_ += bytes.size();
  a.trim();
  a.tell();
}

void kept_answers::end(kept_answer& a, bool whole, time_point now) {
  if (std::exchange(a.over_, true)) return;
  if (whole && a.listed_ && !a.passing_) {
    a.bytes_.shrink_to_fit();
    a.until_ = now + limits_.retention;
    auto& of = holders_.at(a.name().holder());
    of.ended.push_back(&a);
    of.weight += weight_of(a);
    ++kept_;
  } else {
    remove(a);
  }
  a.tell();
}

void kept_answers::refuse(kept_answer& a, http::problem why) {
  if (std::exchange(a.over_, true)) return;
  a.refusal_ = std::move(why);
  remove(a);
  a.tell();
}

void kept_answers::drop(kept_answer& a) {
  if (!a.over_) remove(a);
}

void kept_answers::remove(kept_answer& a) {
  if (!std::exchange(a.listed_, false)) return;
  const auto h = holders_.find(a.name().holder());
  auto& of = h->second;
  if (const auto at = std::ranges::find(of.ended, &a); at != of.ended.end()) {
    of.weight -= weight_of(a);
    of.ended.erase(at);
    --kept_;
  }
  --total_;
  const auto last = of.answers.extract(a.name().key());  // it may end with this, and its name with it
  if (of.answers.empty()) holders_.erase(h);
}

bool kept_answers::make_room() {
  const auto most =
      std::ranges::max_element(holders_, {}, [](const auto& one) -> std::size_t { return one.second.weight; });
  if (most == holders_.end() || most->second.ended.empty()) return false;
  remove(*most->second.ended.front());
  return true;
}

std::optional<time_point> kept_answers::expire(time_point now) {
  std::optional<time_point> next;
  for (auto h = holders_.begin(); h != holders_.end();) {
    auto& ended = (h++)->second.ended;  // which its last one takes along
    for (auto left = ended.size(); left > 0; --left) {
      auto& a = *ended.front();
      if (a.until_ > now) {
        next = next ? std::min(*next, a.until_) : a.until_;
        break;
      }
      remove(a);
    }
  }
  return next;
}

}  // namespace cokv::openai
