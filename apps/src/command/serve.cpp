#include "cli/cli.hpp"
#include "cli/values.hpp"
#include "serve/run.hpp"

namespace cokv::cli {

void add_serve(CLI::App& app, action& chosen) {
  auto o = std::make_shared<serve::options>();
  auto* c = app.add_subcommand("serve", "Serves a model over OpenAI's HTTP API");
  c->add_option("--model", o->model, "Folder of a checkpoint: config.json, tokenizer.json, *.safetensors")
      ->required()
      ->type_name("DIR");
  c->add_option("--name", o->name, "The model's name in requests; the folder's name unless told")->type_name("NAME");
  add_endpoint(*c, "--listen", o->listen, "Where to listen; port 0 takes a free one");
  c->add_option("--api-key-file", o->api_key_file, "Keys that may use the server, one a line; none: everyone may")
      ->type_name("FILE");
  c->add_option("--dtype", o->dtype, "What products and KV are computed in")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  c->add_option("--device", o->device, "cpu or cuda:N")->type_name("DEVICE")->capture_default_str();
  c->add_option("--threads", o->threads, "Threads of the CPU device; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();

  const CLI::Range count(1u, 1u << 30);
  c->add_option("--kv-blocks", o->kv_blocks, "KV blocks on the device; two sequences' worth unless told")->check(count);
  c->add_option("--block-tokens", o->block_tokens, "Tokens of a KV block")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  c->add_option("--max-batched-tokens", o->max_batched_tokens, "The most tokens of one step")
      ->check(count)
      ->capture_default_str();
  c->add_option("--max-running", o->max_running, "The most requests of one step")->check(count)->capture_default_str();
  c->add_option("--max-requests", o->max_requests, "Requests waiting and running; more are answered with 503")
      ->check(count)
      ->capture_default_str();
  c->add_option("--max-sequence", o->max_sequence,
                "Tokens of prompt and answer; what the model was made for unless told")
      ->check(count);

  add_size(*c, "--kv-host", o->kv_host, "Host memory for KV that left the device; 0: none");
  auto* dir = c->add_option("--kv-dir", o->kv_dir, "Folder for KV that outlives the process")->type_name("DIR");
  add_size(*c, "--kv-disk", o->kv_disk, "How much --kv-dir may hold")->needs(dir);
  auto* remote =
      c->add_option("--kv-remote", o->kv_remote, "A cache server (cokv cache)")->type_name("http://HOST:PORT");
  c->add_option("--kv-remote-key-file", o->kv_remote_key_file, "File whose first line is the key for --kv-remote")
      ->type_name("FILE")
      ->needs(remote);

  c->add_option("--trace", o->trace, "Writes a Perfetto trace when the server ends")->type_name("FILE");
  c->add_option("--grace", o->grace, "Seconds that requests in flight have to finish after SIGINT or SIGTERM")
      ->check(CLI::Range(0u, 86400u))
      ->capture_default_str();
  c->callback([o, &chosen] {
    chosen = [o](streams io) {
      serve::run(*o, io.out);
      return 0;
    };
  });
}

}  // namespace cokv::cli
