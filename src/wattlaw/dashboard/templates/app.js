"use strict";
// Replaces the parts of the page that have changed. The server has escaped what is in them.
(() => {
  const status = document.getElementById("connection");
  let timer;
  const alive = () => {
    clearTimeout(timer);
    status.className = "note";
    status.textContent = "Updates by itself";
  };
  const lost = () => {
    status.className = "lost";
    status.textContent = "Not connected: what is shown may be old. Trying again.";
  };
  const show = (event) => {
    alive();
    for (const [name, html] of Object.entries(JSON.parse(event.data))) {
      const part = document.getElementById(`part-${name}`);
      if (part === null || part.contains(document.activeElement)) continue;
      const open = [...part.querySelectorAll("details")].map((item) => item.open);
      const chosen = new Set([...part.querySelectorAll("input:checked")].map((item) => item.value));
      part.innerHTML = html;
      part.querySelectorAll("details").forEach((item, index) => { item.open = Boolean(open[index]); });
      part.querySelectorAll("input").forEach((item) => { item.checked = chosen.has(item.value); });
    }
  };
  const connect = () => {
    const source = new EventSource(document.body.dataset.events);
    source.onopen = alive;
    source.onmessage = show;
    source.onerror = () => {
      clearTimeout(timer);
      timer = setTimeout(lost, 1000);
      // A browser tries again by itself, but not after an answer that is an error.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  };
  connect();
})();
