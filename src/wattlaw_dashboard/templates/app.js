"use strict";
// Replaces the parts of the page that have changed. The server has escaped what is in them.
(() => {
  const status = document.getElementById("connection");
  const waiting = new Map(); // parts of which an element has the focus
  let timer;
  const say = (name, text) => {
    status.className = name;
    if (status.textContent !== text) status.textContent = text; // a screen reader reads changes
  };
  const alive = () => {
    clearTimeout(timer);
    say("note", "Updates by itself");
  };
  const lost = () => {
    say("lost", "Not connected: what is shown may be old. Trying again.");
  };
  const show = (event) => {
    alive();
    for (const [name, html] of Object.entries(JSON.parse(event.data))) {
      const part = document.getElementById(`part-${name}`);
      if (part === null) location.reload(); // it could not be computed when the page was loaded
      else if (part.contains(document.activeElement)) waiting.set(part, html);
      else replace(part, html);
    }
  };
  const replace = (part, html) => {
    waiting.delete(part);
    const open = [...part.querySelectorAll("details")].map((item) => item.open);
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((item) => [item.scrollLeft, item.scrollTop]);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((item, index) => { item.open = Boolean(open[index]); });
    part.querySelectorAll(".scroll, pre").forEach((item, index) => { item.scrollTo(...(scrolled[index] ?? [0, 0])); });
  };
  document.addEventListener("focusout", () => setTimeout(() => {
    for (const [part, html] of waiting) if (!part.contains(document.activeElement)) replace(part, html);
  }));
  let source;
  const connect = () => {
    source?.close();
    waiting.clear();
    source = new EventSource(document.body.dataset.events);
    source.onopen = alive;
    source.onmessage = show;
    source.onerror = () => {
      clearTimeout(timer);
      timer = setTimeout(lost, 1000);
      // A browser tries again by itself, but not after an answer that is an error.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  };
  // Other runs are shown without leaving the page, so that the focus stays.
  const choose = (event) => {
    const form = event.target.form ?? event.target;
    if (form.id !== "filter") return;
    event.preventDefault();
    const query = [...new FormData(form)].filter(([, value]) => value !== "");
    const address = query.length ? `?${new URLSearchParams(query)}` : "";
    history.replaceState(null, "", `/${address}`);
    document.body.dataset.events = `/events${address}`;
    connect();
  };
  document.addEventListener("change", choose);
  document.addEventListener("submit", choose);
  connect();
})();
