#include <algorithm>

#include "cli/cli.hpp"
#include "cli/values.hpp"
#include "cokv/kvstream/topology.hpp"
#include "serve/run.hpp"

namespace cokv::cli {

void add_serve(CLI::App& app, action& chosen) {
  auto o = std::make_shared<serve::options>();
  auto* c = app.add_subcommand("serve", "Serves a model over OpenAI's HTTP API");
  add_checkpoint(*c, o->model);
  c->add_option("--name", o->name, "The model's name in requests; the folder's name unless told")->type_name("NAME");
  add_endpoint(*c, "--listen", o->listen, "Where to listen; port 0 takes a free one");
  c->add_option("--api-key-file", o->api_key_file,
                "Keys that may use the server, one a line; none: everyone may. SIGHUP reads it again")
      ->type_name("FILE");
  add_tls(*c, o->tls_certificate, o->tls_key);
  add_choice(*c, "--role", o->role, {"both", "prefill", "decode", "router"},
             "Computes and answers; or only computes prompts, or decodes them, for a router that answers");
  auto* pipeline = add_count(*c, "--pipeline", o->pipeline, 1, 1024,
                             "The model's layers are spread over so many stages, each in processes of its own");
  auto* tensor = add_count(*c, "--tensor", o->tensor, 1, 256,
                           "Heads and MLP columns of each stage are spread over so many processes");
  auto* ranks = c->add_option("--ranks", o->ranks,
                              "Where the processes of --pipeline and --tensor find each other, one URL for each, stage "
                              "by stage: tcp://HOST:PORT, shm:///PATH, ucx://HOST:PORT. Those of one mpirun unless "
                              "told. Neither encrypted nor authenticated")
                    ->type_name("URL[,URL...]")
                    ->delimiter(',');
  auto* rank = add_count(*c, "--rank", o->rank, 0, 4095,
                         "Which of --ranks this process is; 0 leads, and serves HTTP, which no other does")
                   ->needs(ranks);
  auto* spares =
      c->add_option("--spares", o->spares,
                    "Doors of processes that take the place of one that is lost, and, but for --role prefill, its KV "
                    "from --replicas 1 (which they imply): --rank N begins the first of them, N the number of --ranks")
          ->type_name("URL[,URL...]")
          ->delimiter(',')
          ->needs(ranks);
  auto* rejoin = add_count(
      *c, "--rejoin-within", o->rejoin_within, 1, 86400,
      "Seconds that requests wait, with --replicas 1, until a lost process's place is taken: a spare reads its "
      "weights meanwhile");
  auto* stage_starts = c->add_option("--stage-starts", o->stage_starts,
                                     "Each stage's first layer, 0 the first; as equal as may be unless told. "
                                     "The last stage has the output matrix too, which takes its time of each token")
                           ->type_name("LAYER[,LAYER...]")
                           ->delimiter(',');
  auto* microbatches = add_count(*c, "--microbatches", o->microbatches, 1, 64,
                                 "Steps under way at once in different stages of --pipeline; as many as stages unless "
                                 "told, and one more with --swap-by microbatch");
  auto* prefill = c->add_option("--prefill", o->prefill, "Workers that compute prompts (--role router)")
                      ->type_name("URL[,URL...]")
                      ->delimiter(',');
  auto* decode = c->add_option("--decode", o->decode, "Workers that decode (--role router)")
                     ->type_name("URL[,URL...]")
                     ->delimiter(',');
  auto* worker_key = c->add_option("--worker-key-file", o->worker_key_file,
                                   "File whose first line is the key for all workers (right admin)")
                         ->type_name("FILE");
  auto* heartbeat = add_count(*c, "--heartbeat", o->heartbeat, 10, 60000,
                              "Milliseconds between two questions how a worker is (--role router)");
  auto* dead_after = add_count(*c, "--dead-after", o->dead_after, 20, 600000,
                               "Milliseconds without an answer after which a worker is dead (--role router)");
  auto* join = c->add_option("--join", o->join,
                             "The routers that it goes to by itself, those that stand by too (--role prefill, decode)")
                   ->type_name("URL[,URL...]")
                   ->delimiter(',');
  c->add_option("--join-key-file", o->join_key_file, "File whose first line is the key for --join (right admin)")
      ->type_name("FILE")
      ->needs(join);
  auto* link =
      c->add_option(
           "--link", o->links,
           "Where KV comes in (--role decode; with --lend-memory prefill): cuda_ipc:///PATH for GPUs of this machine, "
           "shm:///PATH, ucx://HOST:PORT, tcp://HOST:PORT; the "
           "first that a peer can use is taken. mpi:// is for "
           "workers of one mpirun, prefill ones too, all of which are told it. Unless told a socket "
           "of this machine, one for GPUs before it where KV is in a GPU's memory, UCX where "
           "there is an RDMA adapter, TCP. Neither encrypted nor authenticated")
          ->type_name("URL[,URL...]")
          ->delimiter(',');
  auto* advertise = c->add_option("--advertise", o->advertise, "What others call this machine (--role prefill, decode)")
                        ->type_name("HOST");
  auto* lend = add_size(*c, "--lend-memory", o->lend_memory,
                        "Memory that decode workers may keep layers of their KV in (--role prefill); 0: none");
  auto* borrow = c->add_option("--borrow-from", o->borrow_from,
                               "Prefill workers with --lend-memory, one of which keeps layers of this one's KV: more "
                               "sequences in the same --kv-blocks of memory. Without a lender nothing is taken (--role "
                               "decode)")
                     ->type_name("URL[,URL...]")
                     ->delimiter(',');
  auto* borrow_layers = add_count(*c, "--borrow-layers", o->borrow_layers, 1, 4096,
                                  "How many layers; as many as come while the others compute unless told")
                            ->needs(borrow);
  c->add_option("--borrow-key-file", o->borrow_key_file,
                "File whose first line is the key for --borrow-from (right admin)")
      ->type_name("FILE")
      ->needs(borrow);
  auto* convert =
      c->add_flag(
           "--convert-kv", o->convert_kv,
           "KV may go to, or come from, a worker of another --dtype, if that one says so too; it is converted on "
           "its way (--role prefill, decode)")
          ->disable_flag_override();
  auto* lease =
      add_count(*c, "--lease", o->lease, 1, 3600,
                "Seconds without a sign of a prompt's sender after which its room is given up (--role decode)");
  auto* standby =
      c->add_option("--standby-of", o->standby_of,
                    "The router for which this one stands by: when it is gone, and a majority of its workers "
                    "agrees, this one answers (--role router)")
          ->type_name("URL");
  c->add_option("--standby-key-file", o->standby_key_file,
                "File whose first line is the key for --standby-of (right admin)")
      ->type_name("FILE")
      ->needs(standby);
  auto* policy =
      add_choice(*c, "--policy", o->policy, {"prefix", "least-loaded", "slo"},
                 "Who gets the next request (--role router): who has least to do with it, KV of its beginning "
                 "that is there counted; who has least to do; or who is expected to be in time");
  auto* slo_ttft = add_count(*c, "--slo-ttft", o->slo_ttft, 1, 3600000,
                             "Milliseconds in which a first token is wanted (--policy slo)");
  auto* slo_tpot = add_count(*c, "--slo-tpot", o->slo_tpot, 1, 60000,
                             "Milliseconds in which each further token is wanted (--policy slo)");
  auto* replicas =
      add_count(*c, "--replicas", o->replicas, 0, 2,
                "Other decode workers that keep a copy of each answer's KV as it grows, and go on with it "
                "when its worker dies (--role router); or, with --pipeline or --tensor, 1: the next process "
                "keeps a copy of each one's KV, for whoever takes its place");
  auto* replica_memory =
      add_size(*c, "--replica-memory", o->replica_memory,
               "Host memory for copies of other workers' KV (--role decode), or, with --replicas 1, of another "
               "process's");
  auto* replica_patience = add_count(*c, "--replica-patience", o->replica_patience, 0, 60000,
                                     "Milliseconds that a token waits until its answer's copies are as far as it; then "
                                     "it is told without (--role decode)");
  auto* replicate_to =
      c->add_option(
           "--replicate-to", o->replicate_to,
           "A cache server (cokv cache) or Redis, or several by comma, for copies of answers' KV as it grows, "
           "instead of other workers: any decode worker that is told the same goes on with them (--role decode)")
          ->type_name("URL[,URL...]");
  c->add_option("--replicate-key-file", o->replicate_key_file, "File whose first line is the key for --replicate-to")
      ->type_name("FILE")
      ->needs(replicate_to);
  add_choice(*c, "--dtype", o->dtype, {"bf16", "f32"}, "What products and KV are computed in");
  add_device(*c, "--device", o->device);
  add_count(*c, "--threads", o->threads, 0, 1024, "Threads of the CPU device; 0: one a core");

  c->add_flag("--batch-invariant", o->batch_invariant,
              "The same bits for a request alone and beside others: slower on a GPU and, in bf16, on CPUs with AMX; "
              "always so on others")
      ->disable_flag_override();

  constexpr std::uint64_t most = 1 << 30;
  add_count(*c, "--kv-blocks", o->kv_blocks, 1, most, "KV blocks on the device; two sequences' worth unless told");
  add_count(*c, "--block-tokens", o->block_tokens, 1, 4096, "Tokens of a KV block");
  add_count(*c, "--max-batched-tokens", o->max_batched_tokens, 1, most, "The most tokens of one step");
  add_count(*c, "--max-running", o->max_running, 1, most, "The most requests that run at once, in all steps under way");
  add_count(*c, "--max-requests", o->max_requests, 1, most, "Requests waiting and running; more are answered with 503");
  add_count(*c, "--max-sequence", o->max_sequence, 1, most,
            "Tokens of prompt and answer; what the model was made for unless told");

  auto* swap =
      add_size(*c, "--swap", o->swap,
               "Host memory for KV of more sequences than the device has room for (--role both, decode): those that "
               "decode take turns on it, and nothing moves while all fit (but see --swap-by); 0: none. With --pipeline "
               "or --tensor the first process's: each has memory for as many blocks of its part");
  auto* swap_by =
      c->add_option("--swap-by", o->swap_by,
                    "What takes turns with --pipeline or --tensor: sequence, for many steps, or microbatch, for one: "
                    "all KV is in --swap then, --kv-blocks is what each device has room for, and a step's blocks, at "
                    "most half of those, come in while others are computed")
          ->check(CLI::IsMember({"sequence", "microbatch"}))
          ->capture_default_str()
          ->needs(swap);
  add_size(*c, "--kv-host", o->kv_host, "Host memory for KV that left the device; 0: none");
  auto* dir = c->add_option("--kv-dir", o->kv_dir, "Folder for KV that outlives the process")->type_name("DIR");
  add_size(*c, "--kv-disk", o->kv_disk, "How much --kv-dir may hold")->needs(dir);
  c->add_flag("--kv-direct", o->kv_direct, "Past the system's cache, where the disk can")->needs(dir);
  auto* remote = c->add_option("--kv-remote", o->kv_remote,
                               "A cache server (cokv cache) or Redis, or several by comma that share blocks, or @FILE "
                               "with one a line, which "
                               "is read again on SIGHUP")
                     ->type_name("URL[,URL...]");
  c->add_option("--kv-remote-ca", o->kv_remote_ca,
                "Who may vouch for https:// in --kv-remote; the system's unless told")
      ->type_name("FILE")
      ->needs(remote);
  c->add_option("--kv-remote-key-file", o->kv_remote_key_file, "File whose first line is the key for --kv-remote")
      ->type_name("FILE")
      ->needs(remote);
  add_count(*c, "--kv-remote-ttl", o->kv_remote_ttl, 0, most, "Seconds that blocks live in Redis; 0: for ever")
      ->needs(remote);

  c->add_flag("--async-scheduling", o->async_scheduling, "Prepare each next step while one runs")
      ->disable_flag_override();
  add_choice(*c, "--kv-policy", o->kv_policy, {"auto", "always"},
             "Load the KV that a tier has where that is faster than computing it, or always");

  c->add_option("--trace", o->trace, "Writes a Perfetto trace when the server ends")->type_name("FILE");
  add_count(*c, "--grace", o->grace, 0, 86400,
            "Seconds that requests in flight have to finish after SIGINT or SIGTERM");
  c->footer("A SIZE is bytes or has a unit: 512MiB, 4GiB, 1.5GB.");
  const std::vector<std::pair<CLI::Option*, std::string>> of_roles{{pipeline, "both, prefill or decode"},
                                                                   {tensor, "both, prefill or decode"},
                                                                   {ranks, "both, prefill or decode"},
                                                                   {rank, "both, prefill or decode"},
                                                                   {spares, "both, prefill or decode"},
                                                                   {rejoin, "both or decode"},
                                                                   {stage_starts, "both, prefill or decode"},
                                                                   {microbatches, "both, prefill or decode"},
                                                                   {prefill, "router"},
                                                                   {decode, "router"},
                                                                   {worker_key, "router"},
                                                                   {heartbeat, "router"},
                                                                   {dead_after, "router"},
                                                                   {join, "prefill or decode"},
                                                                   {link, "prefill or decode"},
                                                                   {lend, "prefill"},
                                                                   {borrow, "decode"},
                                                                   {borrow_layers, "decode"},
                                                                   {advertise, "prefill or decode"},
                                                                   {convert, "prefill or decode"},
                                                                   {lease, "decode"},
                                                                   {policy, "router"},
                                                                   {slo_ttft, "router"},
                                                                   {slo_tpot, "router"},
                                                                   {swap, "both or decode"},
                                                                   {standby, "router"},
                                                                   {replicas, "both, decode or router"},
                                                                   {replica_memory, "both or decode"},
                                                                   {replica_patience, "decode"},
                                                                   {replicate_to, "decode"}};
  c->callback([o, of_roles, link, slo_ttft, slo_tpot, ranks, rank, stage_starts, microbatches, spares, rejoin, replicas,
               replica_memory, replica_patience, swap_by, &chosen] {
    const auto by_mpi = [](const std::string& url) { return url.starts_with("mpi://"); };
    check_memory("--swap", o->swap);
    if (swap_by->count() > 0 && o->swap == 0) throw CLI::ValidationError("--swap-by", "is for --swap above 0");
    check_memory("--kv-host", o->kv_host);
    if (o->role == "decode" || replica_memory->count() > 0) check_memory("--replica-memory", o->replica_memory);
    for (auto& [option, role] : of_roles)
      if (option->count() > 0 && role.find(o->role) == role.npos)
        throw CLI::ValidationError(option->get_name(), "is for --role " + role);
    for (auto* option : {slo_ttft, slo_tpot})
      if (option->count() > 0 && o->policy != "slo")
        throw CLI::ValidationError(option->get_name(), "is for --policy slo");
    const bool of_a_job = std::ranges::all_of(o->links, by_mpi);
    if (link->count() > 0 && o->role == "prefill" && o->lend_memory == 0 && !of_a_job)
      throw CLI::ValidationError("--link", "is for --role decode, or with --lend-memory, or mpi://");
    check_memory("--lend-memory", o->lend_memory);
    // What these move of a block is all of it, and some layers are not here.
    if (!o->borrow_from.empty())
      for (auto& [flag, told] : std::vector<std::pair<std::string, bool>>{{"--swap", o->swap != 0},
                                                                          {"--kv-host", o->kv_host != 0},
                                                                          {"--kv-dir", !o->kv_dir.empty()},
                                                                          {"--kv-remote", !o->kv_remote.empty()},
                                                                          {"--replicate-to", !o->replicate_to.empty()},
                                                                          {"--async-scheduling", o->async_scheduling}})
        if (told) throw CLI::ValidationError(flag, "does not go together with --borrow-from");
    const bool in_parts = o->pipeline * o->tensor > 1;
    if (o->pipeline * o->tensor > topology::max_workers)
      throw CLI::ValidationError("--tensor", std::to_string(o->pipeline * o->tensor) + " workers, and at most " +
                                                 std::to_string(topology::max_workers) + " may be");
    if (rank->count() > 0 && std::ranges::all_of(o->ranks, by_mpi))
      throw CLI::ValidationError("--rank", "is the job's own where --ranks is mpi://");
    if (!o->spares.empty() && std::ranges::any_of(o->ranks, by_mpi))
      throw CLI::ValidationError("--spares", "is for --ranks of URLs: an mpirun ends with any of its processes");
    for (auto* option : {ranks, stage_starts, microbatches, spares, rejoin, swap_by})
      if (option->count() > 0 && !in_parts)
        throw CLI::ValidationError(option->get_name(), "is for --pipeline or --tensor above 1");
    if (o->role == "decode" && replicas->count() > 0 && !in_parts)
      throw CLI::ValidationError("--replicas", "is for --role router, or --pipeline or --tensor above 1");
    // Copies of one that decodes go to other workers, or, in parts, to its own processes.
    if (in_parts && replica_patience->count() > 0)
      throw CLI::ValidationError("--replica-patience", "does not go together with --pipeline or --tensor");
    if (o->role == "both" || (o->role == "decode" && in_parts)) {
      for (auto* option : {replicas, replica_memory})
        if (option->count() > 0 && !in_parts)
          throw CLI::ValidationError(option->get_name(),
                                     option == replicas ? "is for --role router, or --pipeline or --tensor above 1"
                                                        : "is for --role decode, or --pipeline or --tensor above 1");
      if (o->replicas > 1)
        throw CLI::ValidationError("--replicas",
                                   "is 0 or 1 with --pipeline or --tensor: the next process keeps a copy");
      if (!o->spares.empty() && replicas->count() > 0 && o->replicas == 0)
        throw CLI::ValidationError("--spares", "take KV from copies, of which --replicas 0 keeps none");
      if (!o->spares.empty()) o->replicas = 1;
      for (auto* option : {rejoin, replica_memory})
        if (option->count() > 0 && o->replicas == 0)
          throw CLI::ValidationError(option->get_name(), "is for --replicas 1");
      if (o->replicas == 1 && o->replica_memory == 0)
        throw CLI::ValidationError("--replica-memory", "is 0, and --replicas 1 keeps copies in it");
      const bool job = std::ranges::all_of(o->ranks, by_mpi);
      if (o->replicas == 1 && job)
        throw CLI::ValidationError("--replicas", "is for --ranks of URLs: an mpirun ends with any of its processes");
    }
    // What these move of a block is all of it, and this process has a part.
    if (in_parts && o->swap != 0 && o->swap_by == "sequence" && o->role != "router" && o->replicas == 1)
      throw CLI::ValidationError("--swap", "goes together with --replicas 1 by microbatch alone (--swap-by)");
    if (in_parts)
      for (auto& [flag, told] : std::vector<std::pair<std::string, bool>>{{"--kv-host", o->kv_host != 0},
                                                                          {"--kv-dir", !o->kv_dir.empty()},
                                                                          {"--kv-remote", !o->kv_remote.empty()},
                                                                          {"--async-scheduling", o->async_scheduling},
                                                                          {"--borrow-from", !o->borrow_from.empty()},
                                                                          {"--replicate-to", !o->replicate_to.empty()}})
        if (told) throw CLI::ValidationError(flag, "does not go together with --pipeline or --tensor");
    if (o->dead_after <= o->heartbeat) throw CLI::ValidationError("--dead-after", "has to be more than --heartbeat");
    chosen = [o](streams io) {
      serve::run(*o, io.out);
      return 0;
    };
  });
}

}  // namespace cokv::cli
