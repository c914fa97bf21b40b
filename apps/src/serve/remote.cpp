#include "serve/remote.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/redis_store.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::serve {
namespace {

std::string key_in(const std::string& path) {
  std::ifstream in(path);
  std::string key;
  while (std::getline(in, key)) {
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty() && key.front() != '#') return key;
  }
  throw config_error("key file " + path + ": holds no key, or cannot be read");
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const auto first = text.find_first_not_of(blank);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(blank) - first + 1);
}

}  // namespace

std::vector<std::string> node_urls(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    bool joins = false;
    for (auto rest = trimmed(line); !rest.empty() && rest.front() != '#';) {
      auto one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      one = trimmed(one);
      while (one.ends_with('/')) one.remove_suffix(1);
      if (one.empty()) continue;
      if (joins && one.find("://") == one.npos)
        out.back().append(",").append(one);
      else
        out.emplace_back(one);
      joins = true;
    }
  }
  return out;
}

bool any_on_this_machine(const std::vector<std::string>& urls) {
  return std::ranges::any_of(urls, &http_store::on_this_machine);
}

bool remote::on_this_machine() const {
  if (!nodes_) return any_on_this_machine(node_urls(named_));
  std::vector<std::string> names;
  for (const auto& node : nodes_->nodes()) names.push_back(node.name);
  return any_on_this_machine(names);
}

std::shared_ptr<remote> remote::open(const asio::any_io_executor& ex, const options& o, const std::string& flag) {
  try {
    return std::shared_ptr<remote>(new remote(ex, o));
  } catch (const config_error& e) {
    const std::string what = e.what();
    throw config_error(what.starts_with(flag) ? what : flag + ": " + what);
  }
}

remote::remote(const asio::any_io_executor& ex, const options& o)
    : ex_(ex), named_(o.kv_remote), ttl_(o.kv_remote_ttl) {
  if (!o.kv_remote_key_file.empty()) api_key_ = key_in(o.kv_remote_key_file);
  ca_file_ = o.kv_remote_ca;
  const auto urls = node_urls(named_);
  if (!named_.starts_with('@') && urls.size() == 1) {
    blocks_ = make(urls.front());
    return;
  }
  cluster_store_options how;
  how.on_node_bad = [](std::string_view node, error_code why) {
    spdlog::warn("KV node {}: {}; its share is computed until it is back", node, why.message());
  };
  how.on_node_good = [](std::string_view node) { spdlog::info("KV node {} is back", node); };
  blocks_ = nodes_ = std::make_shared<cluster_store>(ex_, read_nodes(), std::move(how));
}

std::shared_ptr<store> remote::make(const std::string& url) const {
  if (url.starts_with("redis:")) return std::make_shared<redis_store>(ex_, url, redis_store_options{.ttl = ttl_});
  http_store_options to;
  to.api_key = api_key_;
  to.ca_file = ca_file_;
  return std::make_shared<http_store>(ex_, url, to);
}

std::vector<cluster_node> remote::read_nodes() const {
  std::string text = named_;
  if (named_.starts_with('@')) {
    std::ifstream in(named_.substr(1));
    std::ostringstream all;
    all << in.rdbuf();
    if (!in) throw config_error(named_.substr(1) + " can't be read, or is empty");
    text = all.str();
  }
  std::vector<std::string> known;
  if (nodes_)
    for (const auto& node : nodes_->nodes()) known.push_back(node.name);
  std::vector<cluster_node> out;
  for (auto& url : node_urls(text)) {
    auto blocks = std::ranges::find(known, url) == known.end() ? make(url) : nullptr;
    out.push_back({std::move(url), std::move(blocks)});
  }
  return out;
}

void remote::reload() {
  if (!named_.starts_with('@')) return;
  try {
    nodes_->set_nodes(read_nodes());
  } catch (const config_error& e) {
    return spdlog::warn("--kv-remote {}: {}; the nodes stay as they were", named_, e.what());
  }
  std::string names;
  for (const auto& node : nodes_->nodes()) names += ' ' + node.name;
  spdlog::info("KV nodes:{}", names);
}

void add_node_metrics(http::metrics& page, std::shared_ptr<const remote> r) {
  if (!r->nodes()) return;
  page.add([r = std::move(r)](http::scrape& s) {
    for (const auto& n : r->nodes()->nodes()) {
      const auto blocks = [&](const char* what, std::uint64_t count) {
        s.counter("cokv_kv_node_blocks_total", "KV blocks by remote node and what became of them; lost: not stored",
                  static_cast<double>(count), {{"node", n.name}, {"what", what}});
      };
      blocks("hit", n.hit_blocks);
      blocks("missed", n.missed_blocks);
      blocks("read", n.read_blocks);
      blocks("written", n.written_blocks);
      blocks("lost", n.lost_blocks);
      s.counter("cokv_kv_node_errors_total", "Failed operations, by remote node", static_cast<double>(n.errors),
                {{"node", n.name}});
      s.counter("cokv_kv_node_passed_by_total", "Operations that did not ask a remote node, as it was left alone",
                static_cast<double>(n.passed_by), {{"node", n.name}});
      s.gauge("cokv_kv_node_bad", "1 while a remote node is left alone after a failure", n.bad ? 1 : 0,
              {{"node", n.name}});
    }
  });
}

}  // namespace cokv::serve
