// Keeps the page up to date: events say what has changed, and then the page is read again. It
// works without this script, too.
"use strict";
(() => {
  const leastBetween = 5000, poll = 15000, soon = 2000;
  const said = document.getElementById("said");
  const hold = document.getElementById("hold");
  const linkState = document.getElementById("link-state");
  let source, version, timer, stopped = false, readAt = 0, reading = false;
  const main = () => document.getElementById("main");
  const at = (path) => new URL(main().dataset.root + path, location.href);

  const tell = (text) => { if (linkState.textContent !== text) linkState.textContent = text; };

  // words returns the verdicts on the page, which are read out when they change.
  const words = () => [...document.querySelectorAll("main .verdict")].map((v) => v.textContent.trim()).join(", ");

  // replace shows a new copy of the page, and leaves focus and open parts as they are.
  function replace(text) {
    const next = new DOMParser().parseFromString(text, "text/html").getElementById("main");
    if (!next) return;
    const old = main(), focused = document.activeElement && document.activeElement.id, before = words();
    if (getSelection().type === "Range" && old.contains(getSelection().anchorNode)) return; // somebody copies
    for (const open of old.querySelectorAll("details[open]")) {
      const same = open.id && next.querySelector("#" + CSS.escape(open.id));
      if (same) same.open = true;
    }
    old.replaceWith(next);
    if (focused && document.activeElement.id !== focused) {
      const again = document.getElementById(focused);
      if (again) again.focus({ preventScroll: true });
    }
    prepare();
    if (words() !== before) said.textContent = "Changed: " + words();
  }

  // read reads the page again, at most once in five seconds.
  async function read() {
    if (stopped || reading) return;
    reading = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.ok && !stopped) replace(await answer.text());
      readAt = Date.now();
    } catch { tell("Not connected"); } finally { reading = false; }
    if (main().hasAttribute("data-soon") && !main().dataset.events) later(soon);
  }

  function later(wait) {
    clearTimeout(timer);
    timer = setTimeout(read, wait);
  }

  // show puts texts that are a second old in their places.
  function show(pulse) {
    for (const [name, text] of Object.entries(pulse.live)) {
      for (const e of document.querySelectorAll(`[data-live="${CSS.escape(name)}"]`)) {
        if (e.textContent === text) continue;
        e.textContent = text;
        e.classList.remove("changed");
        requestAnimationFrame(() => e.classList.add("changed"));
      }
    }
    for (const [id, c] of Object.entries(pulse.cells || {})) mark(document.getElementById("cell-" + id), c);
    if (version !== undefined && version !== pulse.version) later(Math.max(0, leastBetween - (Date.now() - readAt)));
    version = pulse.version;
  }

  // mark shows a cell of the map as the process that works on it knows it.
  function mark(cell, c) {
    if (!cell || cell.title === c.label) return;
    cell.className = `cell l${c.level}${c.work ? " work" : ""}`;
    cell.title = c.label;
    const letter = Object.assign(document.createElement("i"), { textContent: c.letter, ariaHidden: "true" });
    const label = Object.assign(document.createElement("span"), { textContent: ": " + c.label, className: "hidden" });
    cell.replaceChildren(c.text, ...(c.letter ? [letter, label] : [label]));
  }

  // follow listens for events; if there is no stream left, it asks from time to time.
  function follow() {
    if (!main().dataset.events) {
      if (main().hasAttribute("data-soon")) later(soon);
      return;
    }
    source = new EventSource(at(main().dataset.events));
    source.onopen = () => tell("Live");
    source.onmessage = (event) => show(JSON.parse(event.data));
    source.onerror = () => {
      tell("Connecting again");
      if (source.readyState !== EventSource.CLOSED) return;
      timer = setInterval(ask, poll);
      ask();
    };
  }

  async function ask() {
    if (stopped) return;
    try {
      const answer = await fetch(at(main().dataset.events.replace("events", "events.json")), { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const pulse = await answer.json();
      tell("Asks every 15 s");
      if (version !== pulse.version) { version = pulse.version; read(); }
      show(pulse);
    } catch { tell("Not connected"); }
  }

  hold.addEventListener("click", () => {
    stopped = !stopped;
    hold.textContent = stopped ? "Go on" : "Stop updates";
    clearTimeout(timer);
    if (source) source.close();
    if (stopped) { tell("Stopped"); return; }
    read();
    follow();
  });

  // prepare adds what needs a script to the page.
  function prepare() {
    for (const e of document.querySelectorAll("[data-needs-script]")) e.hidden = false;
    if (!navigator.clipboard) return;
    for (const code of document.querySelectorAll(".command code")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy: " + code.textContent);
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(code.textContent);
        said.textContent = "Copied";
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      code.after(button);
    }
  }

  // Arrow keys lead through the cells of the map.
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest && event.target.closest(".cell");
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down" }[event.key];
    if (!cell || !step) return;
    const all = [...document.querySelectorAll(".cell")], i = all.indexOf(cell);
    let next = all[i + step];
    if (typeof step === "string") {
      const box = cell.getBoundingClientRect(), sign = step === "up" ? -1 : 1;
      next = all.filter((c) => sign * (c.getBoundingClientRect().top - box.top) > 4)
        .sort((a, b) => distance(a, box) - distance(b, box))[0];
    }
    if (next) { next.focus(); event.preventDefault(); }
  });
  const distance = (e, box) => {
    const r = e.getBoundingClientRect();
    return 100 * Math.abs(r.top - box.top) + Math.abs(r.left - box.left);
  };

  document.addEventListener("submit", (event) => {
    event.preventDefault(); // forms are never sent: the address has the question
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(event.target)) if (value) query.set(name, value);
    location.search = query;
  });

  if (main().dataset.events) hold.hidden = false;
  if (main().dataset.events) tell("Connecting");
  prepare();
  follow();
})();
