#!/usr/bin/env python3
"""Draws what benches wrote with --json: a picture for each file.

usage: bench/plot.py [--out DIR] [--format png|svg] FILE ...

Knows the figures of bench_ablation, bench_links, bench_gather, bench_overhead, bench_p2p, bench_pager, bench_transfer_in,
bench_transfer_out, long_prefill.py, split.py and bench_async_*. Targets are
dashed lines. Needs matplotlib 3.6 or later (Debian: python3-matplotlib); nothing else here does.
"""
import argparse
import json
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = ["#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#9498a0"]
TARGET = dict(color="#444444", linestyle="--", linewidth=1)
plt.rcParams.update({
    "axes.prop_cycle": plt.cycler(color=COLOURS), "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "font.size": 9, "axes.titlesize": 10,
    "axes.titlelocation": "left", "legend.frameon": False, "figure.dpi": 130, "svg.fonttype": "none"})


def size(n):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:g} {unit}"
    return f"{n} B"


def number(v):
    return f"{v:,.0f}" if v >= 100 else f"{v:.3g}"


def bars(axes, labels, series, log=False):
    """series: name -> values, None where there is none."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        at = [x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))]
        axes.bar(at, [v if v is not None else 0 for v in values], width * 0.92, label=name)
    if log:
        axes.set_yscale("log")
    axes.set_xticks(range(len(labels)), labels)
    axes.grid(axis="x", visible=False)


def target(axes, value, text):
    axes.axhline(value, **TARGET)
    axes.annotate(text, (1, value), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                  va="center", color=TARGET["color"], fontsize=8)


LAYOUTS = {"ft": "FasterTransformer's layout", "paged": "our paged layout"}


def ablation(figures):
    rows = figures["rows"]
    layouts = list(dict.fromkeys(r["layout"] for r in rows))
    figure, axes = plt.subplots(3, len(layouts), figsize=(6.2 * len(layouts), 9), squeeze=False, sharey="row")
    for column, layout in enumerate(layouts):
        mine = [r for r in rows if r["layout"] == layout]
        labels = [r["sink"].split(":")[0] for r in mine]
        for name in dict.fromkeys(r["model"] for r in mine):  # once, below the middle of its sinks
            places = [i for i, r in enumerate(mine) if r["model"] == name]
            labels[places[(len(places) - 1) // 2]] += "\n" + name
        speed, overlap, decode = axes[0][column], axes[1][column], axes[2][column]
        bars(speed, labels, {"by hand, not waited for": [1e3 * r.get("bare_gb_s", 0) for r in mine],
                             "by hand, each waited for": [1e3 * r.get("bare_waited_gb_s", 0) for r in mine],
                             "naive": [1e3 * r["naive_gb_s"] for r in mine],
                             "buffered": [1e3 * r["buffered_gb_s"] for r in mine]}, log=True)
        for x, r in enumerate(mine):
            speed.plot([x - 0.42, x + 0.42], [2e4 * r["naive_gb_s"]] * 2, **TARGET,
                       label="20 x naive: target of buffered" if x == 0 else None)
        speed.set_ylim(top=2e4)
        speed.set_title(f"Streaming by itself, {LAYOUTS.get(layout, layout)}")
        bars(overlap, labels, {"buffered": [r["buffered_s"] / r["ideal_s"] for r in mine],
                               "layered": [r["layered_over_ideal"] for r in mine]})
        target(overlap, 1.1, "1.1")
        overlap.axhline(1, color="#999999", linewidth=0.8)
        overlap.set_title("A prompt that computes as long as its transfer takes")
        bars(decode, labels, {"buffered": [r["decode_slowed_buffered_percent"] for r in mine],
                              "all": [r["decode_slowed_all_percent"] for r in mine]})
        target(decode, 2, "2 %")
        decode.set_title(f"Tokens of {1e3 * mine[0]['step_s']:g} ms")
    for axis, text in zip((row[0] for row in axes), ("MB/s", "time / ideal", "decode slowed, %")):
        axis.set_ylabel(text)
    for row in axes:
        for axis in row:
            axis.tick_params(axis="x", labelsize=8)
    figure.align_ylabels()
    figure.tight_layout(h_pad=2)
    for row in axes:  # a legend a row, where it hides nothing
        row[-1].legend(loc="upper left", bbox_to_anchor=(1.06, 1), fontsize=8)
    return figure


# Of the raw loop beside them: without digests, with.
LINK_TARGETS = {"tcp": (0.95, 0.8), "shm": (1.3, 1.1), "file": (0.9, None), "mpi": (0.9, None), "ucx": (0.9, None)}


def links(rows):
    names = list(dict.fromkeys(r["link"] for r in rows))
    figure, axes = plt.subplots(len(names), 2, figsize=(10, 3.4 * len(names)), squeeze=False)
    for (speed, ratio), name in zip(axes, names):
        mine = [r for r in rows if r["link"] == name]
        chunks = [r["chunk"] for r in mine]
        for key, text in (("raw_gb_s", "by hand, the faster"), ("link_gb_s", "link"), ("digest_gb_s", "link, with digests")):
            if key in mine[0]:
                speed.plot(chunks, [r[key] for r in mine], marker="o", markersize=4, label=text)
        for index, (key, text) in enumerate((("link_gb_s", "link"), ("digest_gb_s", "with digests"))):
            if key in mine[0]:
                ratio.plot(chunks, [r[key] / r["raw_gb_s"] for r in mine], marker="o", markersize=4, label=text,
                           color=COLOURS[index + 1])
                at = LINK_TARGETS.get(name.split()[0], (None, None))[index]  # "file cached write" is a file
                if at:
                    ratio.axhline(at, color=COLOURS[index + 1], linestyle="--", linewidth=1, label=f"its target, {at:g}")
        speed.set_title(name)
        speed.set_ylabel("GB/s")
        ratio.set_title(f"{name}: of the loop by hand")
        for axis in (speed, ratio):
            axis.set_xscale("log", base=2)
            axis.set_xticks(chunks, [size(c) for c in chunks])
            axis.set_ylim(bottom=0)
            axis.set_xlabel("chunk")
            axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def gather(rows):
    figure, (speed, ratio) = plt.subplots(1, 2, figsize=(10, 3.6))
    extents = [r["extent"] for r in rows]
    for key, text in (("memcpy_gb_s", "memcpy, each"), ("packed_gb_s", "packed"), ("digest_gb_s", "packed, with digest")):
        speed.plot(extents, [r[key] for r in rows], marker="o", markersize=4, label=text)
    ratio.plot(extents, [r["packed_gb_s"] / r["memcpy_gb_s"] for r in rows], marker="o", markersize=4, color=COLOURS[1],
               label="packed")
    ratio.plot(extents, [r["digest_gb_s"] / r["memcpy_gb_s"] for r in rows], marker="o", markersize=4, color=COLOURS[2],
               label="with digest")
    ratio.plot([4096, 65536, 65536, extents[-1]], [1, 1, 1.3, 1.3], **TARGET, label="target of packed: 1.0, 1.3 from 64 KiB")
    speed.set_title("Packing scattered extents")
    speed.set_ylabel("GB/s")
    ratio.set_title("Of a memcpy for each extent")
    for axis in (speed, ratio):
        axis.set_xscale("log", base=2)
        axis.set_xticks(extents, [size(e) for e in extents])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("extent")
        axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def overhead(figures):
    rows = figures["rows"]
    names = {"total": "end to end", "prompt": "prompt (TTFT)", "token": "a token", "cpu": "CPU seconds"}
    sinks = list(dict.fromkeys(r["sink"] for r in rows))
    figure, axis = plt.subplots(figsize=(7, 3.8))
    for i, (what, text) in enumerate(names.items()):
        mine = [next(r for r in rows if r["sink"] == s and r["what"] == what) for s in sinks]
        percent = [100 * (r["ratio"] - 1) for r in mine]
        reach = [[p - 100 * (r["low"] - 1) for p, r in zip(percent, mine)],
                 [100 * (r["high"] - 1) - p for p, r in zip(percent, mine)]]
        axis.errorbar([x + (i - 1.5) * 0.16 for x in range(len(sinks))], percent, yerr=reach, fmt="o", capsize=4, label=text)
    axis.axhline(0, color="#999999", linewidth=0.8)
    target(axis, 2, "2 %")
    axis.set_xticks(range(len(sinks)), [s.split(":")[0] for s in sinks])
    axis.set_xlim(-0.5, len(sinks) - 0.5)
    axis.grid(axis="x", visible=False)
    axis.set_ylabel("longer than without, %")
    axis.set_title(f"Requests whose KV is streamed out ({figures['rounds']} rounds, 95 % intervals)")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.06, 1))
    figure.tight_layout()
    return figure


def p2p(figures):
    groups = [(k, figures[k]) for k in ("rows", "simulated") if figures.get(k)]
    groups = [g for g in groups if len(g[1]) > 1] or groups  # of one device alone there is little to see
    kinds = [("gb_s", "one way, GB/s"), ("both_gb_s", "both ways, GB/s"), ("latency_us", "latency, us"),
             ("lends_percent", "may lend, % of KV")]
    figure, axes = plt.subplots(len(groups), 4, figsize=(14, 3.5 * len(groups)), squeeze=False)
    for line, (group, rows) in zip(axes, groups):
        devices = list(dict.fromkeys(r["from"] for r in rows))
        for axis, (key, text) in zip(line, kinds):
            of = {(r["from"], r["to"]): r.get(key) for r in rows}
            cells = [[of[a, b] if of[a, b] is not None else float("nan") for b in devices] for a in devices]
            axis.imshow(cells, cmap="Blues", vmin=0, vmax=1.6 * max((c for row in cells for c in row if c == c), default=1))
            for y, row in enumerate(cells):
                for x, value in enumerate(row):
                    axis.text(x, y, number(value) if value == value else "-", ha="center", va="center", fontsize=8)
            axis.set_xticks(range(len(devices)), devices, rotation=30, ha="right", fontsize=7)
            axis.set_yticks(range(len(devices)), devices, fontsize=7)
            axis.grid(False)
            axis.set_title(("simulated: " if group == "simulated" else "") + text)
            axis.set_xlabel("to")
        line[0].set_ylabel("from")
    figure.tight_layout()
    return figure


def pager(figures):
    rows = figures["rows"]
    beds = list(dict.fromkeys((r["where"], r["collective"]) for r in rows))
    figure, axes = plt.subplots(1, len(beds), figsize=(3.6 * len(beds), 3.4), squeeze=False)
    for axis, (where, collective) in zip(axes[0], beds):
        mine = [r for r in rows if (r["where"], r["collective"]) == (where, collective)]
        lent = [r["lent_percent"] for r in mine]
        axis.plot(lent, [r["slower_us"] / 1e3 for r in mine], "o-", label="measured")
        axis.plot(lent, [r["bound_slower_us"] / 1e3 for r in mine], "x--", label="the bound says")
        axis.axvline(mine[0]["bound_percent"], **TARGET)
        axis.set_title(where + (", with a collective" if collective == "yes" else ""))
        axis.set_xlabel("lent, % of the KV")
        axis.set_ylabel("a step is slower by, ms")
        axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def transfer_in(figures):
    rows = figures["rows"]
    figure, axis = plt.subplots(figsize=(5, 3.4))
    rates = [r["hit_rate"] for r in rows]
    axis.plot(rates, [r["first_requests_s"] for r in rows], "o-", label="the first time")
    axis.plot(rates, [r["second_requests_s"] for r in rows], "o-", label="found behind an empty device")
    axis.axhline(0.9 * rows[-1]["second_requests_s"], **TARGET)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("of each prompt, asked before")
    axis.set_ylabel("requests a second")
    axis.set_title(figures["model"])
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def transfer_out(figures):
    rows = figures["rows"]
    figure, axis = plt.subplots(figsize=(5, 3.4))
    for cache in ("on", "off"):
        for way in ("sync", "async"):
            mine = [r for r in rows if (r["device_cache"], r["scheduling"]) == (cache, way)]
            axis.plot([r["budget"] for r in mine], [r["ratio"] for r in mine], "o-", label=f"{way}, device cache {cache}")
    axis.axhline(0.98, **TARGET)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("tokens of a step at most")
    axis.set_ylabel("throughput, of not sending")
    axis.set_title(figures["model"])
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def long_prefill(figures):
    rows = figures["rows"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    labels = [f"{r['tier']}\n{r['output']} out" for r in rows]
    bars(axes[0], labels, {what: [r[f"{key}_ttft_ms"] for r in rows] for what, key in
                           (("computed", "computed"), ("on the device", "device"), ("after the restart", "restart"))}, log=True)
    for x, r in enumerate(rows):
        axes[0].hlines(1.3 * (r["raw_ms"] + r["first_step_ms"]), x - 0.4, x + 0.4, **TARGET)
    axes[0].set_ylim(bottom=1)
    axes[0].set_ylabel("time to the first token, ms")
    axes[0].set_title(f"{figures['model']}: dashed, 1.3 x (raw + step)")
    axes[0].legend(fontsize=8)
    bars(axes[1], labels, {what: [r[f"{key}_requests_s"] for r in rows] for what, key in
                           (("computed", "computed"), ("on the device", "device"), ("after the restart", "restart"))})
    axes[1].set_ylabel("requests a second, one after the other")
    figure.tight_layout()
    return figure


def ways(rows):
    figure, axis = plt.subplots(figsize=(9, 0.8 + 0.32 * len(rows)))
    at = range(len(rows))
    axis.barh(at, [r["cpu_ns"] for r in rows], color=[COLOURS[0] if r["ratio"] else COLOURS[5] for r in rows])
    for y, r in zip(at, rows):
        beside = f"  ({r['ratio']:.2f} x {r['against']})" if r["ratio"] else ""
        axis.text(r["cpu_ns"], y, "  " + number(r["cpu_ns"]) + beside, va="center", fontsize=7.5)
    axis.set_yticks(at, [r["way"] for r in rows], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlim(right=1.9 * max(r["cpu_ns"] for r in rows))
    axis.set_xlabel("processor time, ns")
    figure.tight_layout()
    return figure


def split(figures):
    rows = figures["rows"]
    figure, (fixed, sheet) = plt.subplots(1, 2, figsize=(10, 3.6))
    stages = figures["stages"]
    for lengths, at_once, name in (("unequal", stages + 2, "answers of 50 to 400 tokens, prompts ahead"),
                                   ("unequal", stages, "as many in all as in one pipeline"), ("equal", stages + 2, "answers of 225 tokens")):
        of = [r for r in rows if r["what"] == "fixed" and r["lengths"] == lengths and r["at_once"] == at_once
              and r["pipelines"].startswith("two") and "KV" not in r["pipelines"]]
        fixed.plot([r["ratio"] for r in of], [r["over"] for r in of], marker="o", label=name)
        if at_once > stages and lengths == "unequal":
            for r in of:
                fixed.annotate(r["pipelines"].removeprefix("two, "), (r["ratio"], r["over"]), xytext=(0, 6),
                               textcoords="offset points", ha="center", fontsize=7.5)
    target(fixed, 1, "")
    fixed.set_xscale("log")
    ratios = sorted({r["ratio"] for r in rows if r["what"] == "fixed"})
    fixed.set_xticks(ratios, [f"{r:g}" for r in ratios])
    fixed.minorticks_off()
    fixed.set_xlabel("a prompt's time over a token's")
    fixed.set_title(f"Makespan of one pipeline of {stages} stages over that of two")
    fixed.set_ylim(bottom=min(0.8, fixed.get_ylim()[0]))
    fixed.legend(fontsize=8)
    of = [r for r in rows if r["what"] == "sheet"]
    bars(sheet, [r["pipelines"].replace(", ", ",\n").replace(" prompts", "\nprompts").replace(" of", "\nof") for r in of],
         {"TPOT, p50": [r["tpot_ms"] for r in of], "p99": [r["tpot_p99_ms"] for r in of]})
    sheet.tick_params(axis="x", labelsize=7.5)
    sheet.set_ylabel("ms")
    sheet.set_title("OPT-66B on eight machines, 64 clients")
    sheet.legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw(figures):
    if isinstance(figures, dict):
        known = {"ablation": ablation, "overhead": overhead, "p2p": p2p, "pager": pager, "transfer_in": transfer_in,
                 "transfer_out": transfer_out, "long_prefill": long_prefill, "split": split}
        return known.get(figures.get("bench"), lambda _: None)(figures)
    for key, of in (("link_gb_s", links), ("packed_gb_s", gather), ("ratio", ways)):
        if figures and key in figures[0]:
            return of(figures)
    return None


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+")
    options.add_argument("--out", default=".")
    options.add_argument("--format", choices=("png", "svg"), default="png")
    options = options.parse_args()
    os.makedirs(options.out, exist_ok=True)
    for path in options.files:
        figure = draw(json.load(open(path)))
        if figure is None:
            print(f"{path}: not a bench whose figures are drawn")
            continue
        name = os.path.splitext(os.path.basename(path))[0] + "." + options.format
        figure.savefig(os.path.join(options.out, name), bbox_inches="tight")
        plt.close(figure)
        print(os.path.join(options.out, name))


if __name__ == "__main__":
    main()
