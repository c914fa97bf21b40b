#include "serve/front.hpp"

#include <filesystem>

#include "http/serve.hpp"
#include "random_id.hpp"

namespace cokv::serve {
std::string name_of(const options& o) {
  if (!o.name.empty()) return o.name;
  const auto path = std::filesystem::absolute(o.model.dir).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

http::server_options front_of(const options& o, http::metrics& page) {
  http::server_options how;
  if (!o.api_key_file.empty()) how.keys = http::api_keys::load(o.api_key_file);
  how.tls = http::load_tls(o.tls_certificate, o.tls_key);
  how.observe = page.observer();
  how.handshake_failed = page.handshake_observer();
  // A router keeps a connection for each answer.
  if (o.role == "prefill" || o.role == "decode") how.limit.connections += o.max_requests;
  return how;
}

void reload_front(http::server& s, const options& o) {
  auto tls = http::load_tls(o.tls_certificate, o.tls_key);
  if (!o.api_key_file.empty()) s.set_keys(http::api_keys::load(o.api_key_file));
  s.set_tls(std::move(tls));
}

openai::service_options api_of(const options& o, const id256& fingerprint, const sampling_params& sampling,
                               chat_template chat, wall_time now) {
  return {.id = name_of(o),
          .fingerprint = "fp_" + fingerprint.hex().substr(0, 12) + '_' + o.dtype,
          .created = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count(),
          .defaults = {.sampling = sampling},
          .chat = std::move(chat),
          .random = random_number()};
}

}  // namespace cokv::serve
