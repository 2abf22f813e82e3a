
"use strict";
// What a policy or a program wrote gets onto the page as text nodes alone: nothing here makes markup of a string.
(() => {
  const $ = (id) => document.getElementById(id);
  const { columns, rows, chunk } = JSON.parse($("rows").textContent);
  const instructions = JSON.parse($("instructions").textContent);
  const at = Object.fromEntries(columns.map((name, index) => [name, index]));
  const PAGE = 100;

  function make(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "class") element.className = value;
      else if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  }

  function duration(seconds) {
    if (seconds < 0.9995) return seconds > 0 ? `${Number((seconds * 1000).toPrecision(3))} ms` : "0 s";
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes} min ${whole % 60} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  const number = (value) => value.toLocaleString("en-US");
  const reward = (row) => row[at.reward] === null
    ? make("span", { class: "none" }, "masked") : Number(row[at.reward].toPrecision(3)).toString();

  // the table of episodes

  const state = { sort: null, down: false, page: 0, found: rows };
  const HEADS = [
    ["episode", "task", false], ["verdict", "verdict", false], ["reward", "reward", true], ["end", "end", false],
    ["suspicion", "suspicious", false], ["turns", "turns", true], ["tokens", "tokens", true], ["time", "seconds", true],
  ];
  const SUSPICIONS = ["none", "weak", "strong", "proven"];

  function compare(a, b) {
    const index = at[state.sort];
    let x = a[index], y = b[index];
    if (state.sort === "suspicious") [x, y] = [SUSPICIONS.indexOf(x), SUSPICIONS.indexOf(y)];
    if (x === null || y === null) return (x === null) - (y === null) || a[0] - b[0];
    const order = x < y ? -1 : x > y ? 1 : 0;
    return (state.down ? -order : order) || a[0] - b[0];
  }

  function matches(row, words, policy, verdict, end, mark) {
    if (policy && row[at.policy] !== policy) return false;
    if (verdict && row[at.verdict] !== verdict) return false;
    if (end && row[at.end] !== end) return false;
    if (mark === "suspicious" && row[at.suspicious] === "none") return false;
    if (mark === "quarantine" && !row[at.quarantine]) return false;
    if (mark === "masked" && row[at.reward] !== null) return false;
    if (mark === "differ" && !row[at.differ]) return false;
    if (!words.length) return true;
    const text = `${row[at.task]}/${row[at.policy]}/${row[at.sample]} ${row[at.evidence]}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function search() {
    const words = $("f-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = ["policy", "verdict", "end", "mark"].map((name) => $(`f-${name}`).value);
    state.found = rows.filter((row) => matches(row, words, ...chosen));
    if (state.sort) state.found = [...state.found].sort(compare);
    state.page = 0;
    drawTable();
  }

  function drawTable() {
    const pages = Math.max(1, Math.ceil(state.found.length / PAGE));
    const shown = state.found.slice(state.page * PAGE, (state.page + 1) * PAGE);
    $("table").tBodies[0].replaceChildren(...shown.map((row) => make("tr", {},
      make("td", {}, make("a", { href: `#e${row[0]}` }, `${row[at.task]}/${row[at.policy]}/${row[at.sample]}`)),
      make("td", {}, row[at.verdict]), make("td", { class: "n" }, reward(row)), make("td", {}, row[at.end]),
      make("td", {}, row[at.suspicious] === "none" ? "" : make("span", { class: `tag v-${row[at.suspicious]}` }, row[at.suspicious])),
      make("td", { class: "n" }, number(row[at.turns])), make("td", { class: "n" }, number(row[at.tokens])),
      make("td", { class: "n" }, duration(row[at.seconds])))));
    $("table").tHead.replaceChildren(make("tr", {}, HEADS.map(([title, name, right]) => {
      const arrow = state.sort !== name ? "" : state.down ? " ↓" : " ↑";
      const head = make("button", { type: "button" }, title + arrow);
      head.addEventListener("click", () => {
        state.down = state.sort === name ? !state.down : right || name === "suspicious";
        state.sort = name;
        search();
      });
      return make("th", { class: right ? "n" : "", scope: "col" }, head);
    })));
    $("f-count").textContent = `${number(state.found.length)} of ${number(rows.length)}`;
    $("p-at").textContent = `page ${state.page + 1} of ${pages}`;
    $("p-before").disabled = state.page === 0;
    $("p-after").disabled = state.page === pages - 1;
    $("pages").hidden = pages === 1;
  }

  function startTable() {
    if (!$("filter")) return;
    for (const name of ["policy", "verdict", "end"]) {
      const values = [...new Set(rows.map((row) => row[at[name]]))].sort();
      $(`f-${name}`).append(...values.map((value) => make("option", { value }, value)));
      $(`f-${name}`).addEventListener("change", search);
    }
    $("f-mark").addEventListener("change", search);
    $("f-text").addEventListener("input", search);
    $("filter").addEventListener("submit", (event) => event.preventDefault());
    $("p-before").addEventListener("click", () => { state.page--; drawTable(); });
    $("p-after").addEventListener("click", () => { state.page++; drawTable(); });
    for (const id of ["filter", "table"]) $(id).hidden = false;
    drawTable();
  }

  // one trajectory

  const unpacked = new Map();

  async function trajectory(index) {
    const place = Math.floor(index / chunk);
    if (!unpacked.has(place)) {
      const packed = Uint8Array.from(atob($(`chunk-${place}`).textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
      unpacked.set(place, JSON.parse(await new Response(stream).text()));
    }
    return unpacked.get(place)[index % chunk];
  }

  const block = (label, text, kind) => text ? [label ? make("p", { class: "label" }, label) : null, make("pre", { class: kind || "" }, text)] : [];
  const pairs = (list) => make("dl", { class: "pairs" }, list.filter(([, value]) => value !== null && value !== "" && value !== undefined)
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));

  function drawTurn(turn) {
    const { action } = turn;
    const ended = turn.exit_reason === undefined ? null
      : turn.signal !== undefined ? `${turn.exit_reason}, signal ${turn.signal}`
      : turn.exit_code !== undefined ? `${turn.exit_reason}, code ${turn.exit_code}` : turn.exit_reason;
    const times = [`thought ${duration(turn.think_s)}`, `acted ${duration(turn.act_s)}`, turn.tokens ? `${number(turn.tokens)} tokens` : null, ended];
    return make("section", { class: "turn" },
      make("h2", {}, `${turn.turn + 1}. ${action.kind}`, action.path ? make("code", {}, action.path) : null, make("small", {}, times.filter(Boolean).join(" · "))),
      block("", action.body, "command"), block("stdin", action.stdin), block("old", action.old, "old"), block("new", action.new, "new"),
      block("stdout" + (turn.truncated ? ", cut by the budget" : ""), turn.stdout), block("stderr", turn.stderr, "stderr"), block("refused", turn.error, "error"),
      turn.data ? make("details", {}, make("summary", {}, "what the policy gave with it"), make("pre", {}, turn.data)) : null);
  }

  function drawVerdict(row, verdict) {
    if (!verdict) return make("section", {}, make("h2", {}, "No verdict"), make("p", { class: "note" }, "Nothing was judged."));
    return make("section", {}, make("h2", {}, `Verdict ${row[at.verdict]}`),
      pairs([
        ["reward", reward(row)], ["score", verdict.score === null ? "none" : String(verdict.score)],
        ["tests", `${verdict.passed} of ${verdict.total} passed`], ["suspicion", verdict.suspicious + (row[at.quarantine] ? ", in quarantine" : "")],
        ["integrity", [verdict.integrity, ...verdict.capped].join("; ")], ["penalties", verdict.penalty], ["decision", verdict.decision],
      ]),
      verdict.evidence.map(([code, severity, cell, paths]) => make("p", {}, make("span", { class: `tag v-${severity}` }, severity), ` ${code}`, cell ? ` in ${cell}` : "", paths.length ? `: ${paths.join(", ")}` : "")),
      block("failures", verdict.failures.join("\n"), "error"),
      block("tests that did not pass", verdict.failed.map(([test, outcome]) => `${outcome}  ${test}`).join("\n") + (verdict.failed_more ? `\nand ${verdict.failed_more} more` : "")));
  }

  function drawTrajectory(row, data) {
    const id = `${row[at.task]}/${row[at.policy]}/${row[at.sample]}`;
    const [queued, opened, judged] = data.phases;
    const step = (to, text) => to >= 0 && to < rows.length ? make("a", { href: `#e${to}` }, text) : null;
    return [
      make("div", { class: "bar-top" }, make("a", { href: "#episodes" }, "← report"), make("span", { class: "grow" }), step(row[0] - 1, "before"), step(row[0] + 1, "after")),
      make("p", { class: "kicker" }, "Episode"), make("h1", {}, id),
      make("section", {}, pairs([
        ["verdict", row[at.verdict]], ["reward", reward(row)], ["ended", row[at.end]], ["why", data.why], ["limits hit", data.limits.join(", ")], ["began", new Date(data.started * 1000).toLocaleString()],
        ["time", `${duration(row[at.seconds])}: opened in ${duration(opened)}, judged in ${duration(judged)}; queued ${duration(queued)} before`],
        ["turns", number(row[at.turns])], ["tokens", number(row[at.tokens])], ["seed", data.seed], ["artifacts", data.artifacts],
        ["branched from", data.branched ? `${data.branched[0]}, after ${data.branched[1]} turns` : null], ["judged as", data.judge_episode],
      ]), data.attempts.length ? block("tries in which we failed", data.attempts.map(([error, message, seconds]) => `${error} after ${duration(seconds)}: ${message}`).join("\n"), "error") : null,
      instructions[row[at.task]] ? make("details", {}, make("summary", {}, "what the task asks"), make("pre", {}, instructions[row[at.task]])) : null),
      data.turns.map(drawTurn), drawVerdict(row, data.verdict),
    ];
  }

  let scroll = 0;

  async function route() {
    const named = /^#e(\d+)$/.exec(location.hash);
    const row = named && rows[Number(named[1])];
    if (!row) {
      const was = !$("view").hidden;
      $("view").hidden = true;
      $("view").replaceChildren();
      $("report").hidden = false;
      if (was) scrollTo(0, scroll);
      return;
    }
    if ($("view").hidden) scroll = scrollY;
    $("report").hidden = true;
    try {
      $("view").replaceChildren(...drawTrajectory(row, await trajectory(row[0])).flat());
    } catch (error) {
      $("view").replaceChildren(make("a", { href: "#episodes" }, "← report"), make("p", {}, `This trajectory cannot be shown: ${error}`));
    }
    $("view").hidden = false;
    scrollTo(0, 0);
  }

  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    if ($("view").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = Number(location.hash.slice(2));
    if (event.key === "Escape") location.hash = "#episodes";
    if (event.key === "ArrowLeft" && here > 0) location.hash = `#e${here - 1}`;
    if (event.key === "ArrowRight" && here + 1 < rows.length) location.hash = `#e${here + 1}`;
  });
  startTable();
  route();
})();
