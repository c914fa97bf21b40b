#include "store/log_book.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

using namespace cokv;
using namespace cokv::detail;

namespace {

const auto layout = std::make_shared<const block_layout>(block_layout{{600, 400}});  // 1000 bytes a block

stored_id id_of(std::uint32_t n) {
  stored_id id;
  id.key.bytes[0] = static_cast<std::byte>(n);
  id.key.bytes[1] = static_cast<std::byte>(n >> 8);
  return id;
}

std::shared_ptr<const log_group> group(std::uint64_t serial, const std::vector<std::uint32_t>& keys,
                                       const std::string& tenant = {}) {
  auto g = std::make_shared<log_group>();
  g->tenant = tenant;
  g->serial = serial;
  g->extent.layout = layout;
  g->extent.places = static_cast<std::uint32_t>(keys.size());
  for (auto k : keys) g->blocks.push_back({id_of(k).key, static_cast<std::uint32_t>(g->blocks.size())});
  return g;
}

// A sealed file of 1000 bytes a key.
void add(log_book& book, std::uint64_t serial, bool carried, const std::vector<std::uint32_t>& keys,
         const std::string& tenant = {}) {
  book.add_file(serial, carried, 1000 * keys.size());
  book.insert(group(serial, keys, tenant));
  book.seal(serial);
}

std::vector<std::uint32_t> names(const log_book::pass& p) {
  std::vector<std::uint32_t> out;
  for (const auto& c : p.carry)
    out.push_back(std::to_integer<std::uint32_t>(c.id.key.bytes[0]) | std::to_integer<std::uint32_t>(c.id.key.bytes[1])
                                                                          << 8);
  return out;
}

using list = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("log book: what nobody asked for goes, oldest file first; what was asked for is carried over") {
  log_book book;
  add(book, 1, false, {0, 1, 2, 3});
  add(book, 2, false, {4, 5, 6, 7});
  CHECK(book.used() == 8000);
  CHECK(book.live() == 8000);
  book.touch(id_of(2));
  book.touch(id_of(0));
  CHECK(book.victim(0) == 1);
  auto p = book.plan(1, 100'000);
  CHECK(p.carried);
  CHECK(names(p) == list{0, 2});
  CHECK(names(book.plan(1, 1999)) == list{0});  // no more than there is room for: the first of a prefix
  CHECK(names(book.plan(2, 100'000)).empty());
  book.touch(id_of(2));
  CHECK(names(book.plan(1, 1999)) == list{2});  // the most wanted
  book.touch(id_of(1)), book.touch(id_of(3));
  CHECK(names(book.plan(1, 100'000)) == list{0, 2});  // half of a file at most

  book.add_file(3, true, 2000);
  std::vector<std::uint8_t> uses{book.uses_after(p.carry[0]), book.uses_after(p.carry[1])};
  book.insert(group(3, {0, 2}), uses);
  CHECK(book.live(1) == 2000);
  CHECK(book.drop_file(1, true) == 2);
  book.unlinked(1);
  CHECK(book.used() == 6000);
  CHECK(book.find(id_of(0))->group->serial == 3);
  CHECK(!book.find(id_of(1)));
  CHECK(book.returns(id_of(1)));  // once
  CHECK(!book.returns(id_of(1)));
  CHECK(!book.returns(id_of(0)));
}

TEST_CASE("log book: new blocks are cleaned when they are more than their share, else those that were carried") {
  log_book book;
  add(book, 1, true, {0, 1});
  add(book, 2, false, {2, 3});
  add(book, 3, true, {4, 5});
  CHECK(book.victim(1999) == 2);
  CHECK(book.victim(2000) == 1);
  book.hold(1);
  CHECK(book.victim(2000) == 3);
  book.hold(3);
  CHECK(book.victim(2000) == 2);
  book.hold(2);
  CHECK(!book.victim(2000));
  CHECK(book.evictable() == 0);
  book.release(3);
  CHECK(book.evictable() == 2000);
  // Each time that a block is carried over it was asked for once less.
  for (int i = 0; i < 9; ++i) book.touch(id_of(4));
  auto p = book.plan(3, 100'000);
  REQUIRE(names(p) == list{4});
  CHECK(book.uses_after(p.carry[0]) == 2);
}

TEST_CASE(
    "log book: an open file goes when nothing else can, a suspect first, a dead one at once, a mostly dead one whole") {
  log_book book;
  book.add_file(1, false, 9000);
  book.insert(group(1, {0}));
  CHECK(book.victim(0) == 1);  // open
  add(book, 2, false, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(book.victim(0) == 2);
  add(book, 3, false, {9, 10, 11, 12});
  for (std::uint32_t k = 1; k < 7; ++k) CHECK(book.erase(id_of(k)));
  CHECK(!book.erase(id_of(1)));
  CHECK(book.victim(0) == 2);
  auto p = book.plan(2, 100'000);
  CHECK(names(p) == list{7, 8});  // although nobody asked
  CHECK(!p.carried);
  book.resize(2, 20'000);  // what is dead is little of it: in its turn, and then it loses what nobody asked for
  CHECK(names(book.plan(2, 100'000)).empty());
  book.resize(2, 8000);
  book.suspect(3);
  CHECK(book.suspected());
  CHECK(book.victim(0) == 3);
  CHECK(names(book.plan(3, 100'000)) == list{9, 10});
  CHECK(book.plan(3, 100'000).carried);
  CHECK(book.unwanted().empty());
  book.erase(id_of(7)), book.erase(id_of(8));
  CHECK(book.unwanted() == std::vector<std::uint64_t>{2});
  book.hold(2);
  CHECK(book.unwanted().empty());
}

TEST_CASE("log book: a removal is kept while another file holds what it undoes") {
  log_book book;
  add(book, 1, false, {0, 7});
  add(book, 2, false, {1});
  const log_book::undone removal{{id_of(7), 2}, 40};
  book.keep_removal(2, removal);
  book.removal_is_there(removal);
  CHECK(book.needed_removals(2).size() == 1);  // it comes first
  book.erase(id_of(7));
  REQUIRE(book.needed_removals(2).size() == 1);
  CHECK(book.needed_removals(2)[0].sequence == 40);
  CHECK(!book.emptied());
  book.erase(id_of(1));
  CHECK(book.unwanted().empty());  // somebody needs what it undoes
  CHECK(book.emptied() == 2);
  book.resize(2, 3000);  // what it holds besides is more
  CHECK(!book.emptied());
  book.resize(2, 1000);
  book.drop_file(1, false);
  book.unlinked(1);
  CHECK(book.needed_removals(2).size() == 1);  // its name may come back
  const auto gone = book.unlinked_serials();
  CHECK(gone == std::vector<std::uint64_t>{1});
  book.forget_unlinked(gone);
  CHECK(book.needed_removals(2).empty());
  CHECK(book.unwanted() == std::vector<std::uint64_t>{2});
  add(book, 3, false, {7});
  book.erase(id_of(7));
  CHECK(book.needed_removals(2).empty());  // came later
}

TEST_CASE("log book: of the removals of a name the last is enough, and one that nothing is left for is not kept") {
  log_book book;
  add(book, 1, false, {0, 1, 2});
  add(book, 2, false, {3});
  add(book, 3, false, {4});
  const auto remove = [&](std::uint64_t in, std::uint32_t key, std::uint64_t sequence, bool there) {
    book.erase(id_of(key));
    const log_book::undone r{{id_of(key), 3}, sequence};
    book.keep_removal(in, r);
    if (there) book.removal_is_there(r);
  };
  remove(2, 0, 40, true);
  remove(3, 0, 50, false);
  CHECK(book.needed_removals(2).size() == 1);  // nobody knows of the second one yet
  CHECK(book.needed_removals(3).size() == 1);
  book.removal_is_there({{id_of(0), 3}, 50});
  CHECK(book.needed_removals(2).empty());
  CHECK(book.needed_removals(3).size() == 1);
  remove(2, 3, 60, true);  // both in one file
  remove(2, 9, 70, true);  // of nothing
  CHECK(book.needed_removals(2).empty());
  book.suspect(3);  // nobody knows what that holds
  CHECK(book.needed_removals(2).size() == 3);
}

TEST_CASE("log book: a file that is wanted whole is carried whole, as far as others lost what it takes") {
  log_book book(3000);
  for (std::uint32_t i = 0; i < 8; ++i) add(book, 1 + i, false, {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
  for (std::uint32_t k = 0; k < 32; ++k)
    if (k / 4 != 4) book.touch(id_of(k));
  CHECK(names(book.plan(1, 100'000)) == list{0, 1, 2, 3});  // two of them saved
  CHECK(names(book.plan(2, 100'000)) == list{4, 5, 6});
  CHECK(names(book.plan(3, 100'000)) == list{8, 9});
  book.drop_file(5, false);  // not for room
  CHECK(names(book.plan(4, 100'000)) == list{12, 13});
  book.drop_file(4, true);  // all of it: it counts
  CHECK(names(book.plan(6, 100'000)) == list{20, 21, 22, 23});
  CHECK(names(book.plan(7, 100'000)) == list{24, 25, 26});
}

TEST_CASE("log book: what a file holds adds up, whatever happens") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    log_book book;
    std::map<std::uint32_t, std::uint64_t> where;  // of each key, the file
    std::map<std::uint32_t, std::string> whose;
    std::set<std::uint64_t> files;
    std::map<std::uint64_t, std::uint64_t> size;
    std::uint64_t serial = 0;
    for (int step = 0; step < 200; ++step) {
      switch (random() % 5) {
        case 0:
        case 1: {
          list keys;
          for (std::uint32_t k = random() % 40, n = 1 + random() % 6; n > 0; --n, k += 1 + random() % 3)
            keys.push_back(k);
          const char* const tenants[] = {"", "a", "b"};
          const auto* tenant = tenants[random() % 3];
          add(book, ++serial, random() % 3 == 0, keys, tenant);
          for (auto k : keys) where[k] = serial, whose[k] = tenant;
          files.insert(serial);
          size[serial] = 1000 * keys.size();
          break;
        }
        case 2: {
          const auto k = static_cast<std::uint32_t>(random() % 40);
          CHECK(book.erase(id_of(k)) == (where.erase(k) > 0));
          break;
        }
        case 3:
          book.touch(id_of(random() % 40));
          break;
        case 4: {
          const auto v = book.victim(random() % 20'000);
          REQUIRE(v.has_value() == !files.empty());
          if (!v) break;
          const auto room = random() % 5000;
          const auto p = book.plan(*v, room);
          CHECK(p.carry.size() * 1000 <= std::min<std::uint64_t>(room, size[*v] / 2));
          for (const auto& c : p.carry) CHECK(book.find(c.id)->group->serial == *v);
          const auto n = book.drop_file(*v, true);
          CHECK(n == static_cast<std::size_t>(
                         std::count_if(where.begin(), where.end(), [&](auto& w) { return w.second == *v; })));
          std::erase_if(where, [&](auto& w) { return w.second == *v; });
          book.unlinked(*v);
          const std::uint64_t gone[] = {*v};
          book.forget_unlinked(gone);
          files.erase(*v);
        }
      }
      std::uint64_t used = 0;
      for (auto f : files) used += size[f];
      REQUIRE(book.used() == used);
      REQUIRE(book.live() == 1000 * where.size());
      REQUIRE(book.blocks() == where.size());
      std::map<std::string, std::uint64_t> has, said;
      for (auto& [k, f] : where) {
        REQUIRE(book.find(id_of(k))->group->serial == f);
        if (!whose[k].empty()) has[whose[k]] += 1000;
      }
      for (const auto& t : book.tenants()) said[t.name] = t.used_bytes;
      REQUIRE(said == has);
    }
  }
}

TEST_CASE("log book: what quotas say that a tenant has is what it has, whatever happens") {
  std::uint64_t given_up = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    tenant_quotas quotas{{"a", 8000}};
    log_book book(0, quotas);
    std::uint64_t serial = 0;
    const auto has = [&](const std::string& who) {
      std::uint64_t out = 0;
      for (std::uint32_t k = 0; k < 60; ++k)
        if (const auto* b = book.find(id_of(k)); b && b->group->tenant == who) out += 1000;
      return out;
    };
    for (int step = 0; step < 150; ++step) {
      const std::string who = random() % 2 ? "a" : "b";
      switch (random() % 6) {
        case 0:
          if (const auto v = book.victim(random() % 20'000)) {
            auto p = book.plan(*v, random() % 5000);
            std::map<std::string, list> of;  // carried tenant by tenant
            std::map<std::string, std::vector<std::uint8_t>> uses;
            for (const auto& c : p.carry) {
              of[c.group->tenant].push_back(names({.carry = {c}})[0]);
              uses[c.group->tenant].push_back(book.uses_after(c));
            }
            for (const auto& [tenant, keys] : of) {
              book.add_file(++serial, true, 1000 * keys.size());
              book.insert(group(serial, keys, tenant), uses[tenant]);
              book.seal(serial);
            }
            book.drop_file(*v, true);
            book.unlinked(*v);
            book.forget_unlinked(std::vector{*v});
          }
          break;
        case 1:
          book.erase(id_of(random() % 60));
          break;
        case 2:
          book.touch(id_of(random() % 60));
          break;
        case 3:
          if (random() % 10 == 0) {
            quotas = {{"a", 3000 + random() % 8000}};
            if (random() % 2) quotas["b"] = 5000 + random() % 5000;
            if (random() % 5 == 0) quotas.erase("a");
            book.set_quotas(quotas);
          }
          break;
        default: {
          list keys;
          for (std::uint32_t k = random() % 50, n = 1 + random() % 4; n > 0; --n, k += 1 + random() % 3)
            keys.push_back(k);
          const auto bytes = 1000 * keys.size();
          const auto others = has(who == "a" ? "b" : "a");
          const bool can = book.quotas().can_take(who, bytes);
          if (!can) REQUIRE(bytes > quotas.at(who));  // nothing is open
          while (const auto id = book.quotas().give_up(who, bytes)) {
            REQUIRE(book.find(*id)->group->tenant == who);
            book.erase(*id);
            ++given_up;
          }
          REQUIRE(has(who == "a" ? "b" : "a") == others);
          if (!can) break;
          add(book, ++serial, false, keys, who);
          if (quotas.contains(who)) REQUIRE(has(who) <= quotas[who]);
        }
      }
      std::map<std::string, std::uint64_t> said;
      for (const auto& t : book.tenants()) {
        said[t.name] = t.used_bytes;
        REQUIRE(t.quota_bytes == (quotas.contains(t.name) ? quotas[t.name] : 0));
      }
      for (const std::string tenant : {"a", "b"}) {
        const auto now = has(tenant);
        REQUIRE(said[tenant] == now);
        if (quotas.contains(tenant)) {  // and so say the orders
          const auto q = quotas[tenant];
          REQUIRE(book.quotas().can_take(tenant, q));
          REQUIRE(!book.quotas().can_take(tenant, q + 1));
        }
      }
    }
  }
  CHECK(given_up > 1000);
}
