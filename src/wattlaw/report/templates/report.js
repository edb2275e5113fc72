"use strict";
const specs = JSON.parse(document.getElementById("figures").textContent);
const options = {
  ast: true, actions: false, defaultStyle: false, renderer: "svg",
  tooltip: {disableDefaultStyle: true},
};
function draw(target) {
  if (target.childElementCount) return;
  window.vegaEmbed(target, specs[target.dataset.figure], options).then(() => {
    // The chart has a label; its marks have none that say more.
    target.querySelector("svg").setAttribute("aria-hidden", "true");
  }).catch((error) => {
    target.textContent = `This figure cannot be drawn: ${error.message}`;
  });
}
// A figure of a folded section is drawn when the section is opened.
for (const target of document.querySelectorAll(".chart")) {
  const section = target.closest("details");
  if (section && !section.open) section.addEventListener("toggle", () => draw(target), {once: true});
  else draw(target);
}
function numberOf(text) {
  return parseFloat(text.replaceAll(",", "").replaceAll("\u2212", "-").replace(/^[+<±]\s*/, ""));
}
function sort(table, column, ascending) {
  const body = table.tBodies[0];
  const text = (row) => row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((a, b) => {
    const [first, second] = [numberOf(text(a)), numberOf(text(b))];
    if (isNaN(first) || isNaN(second)) {
      return isNaN(first) - isNaN(second) || text(a).localeCompare(text(b)) * (ascending ? 1 : -1);
    }
    return (first - second) * (ascending ? 1 : -1);
  });
  body.append(...rows);
}
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sort(table, column, ascending);
    });
  });
}
