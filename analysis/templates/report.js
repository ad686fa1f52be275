// Clicking a heading sorts the table by its column; a second click reverses the order.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [row.cells[column].dataset.key, row]);
      rows.sort(([a], [b]) => {
        // Empty values stay last in both orders.
        if (a === "" || b === "") return (a === "") - (b === "");
        const numbers = a - b;
        const order = Number.isNaN(numbers) ? a.localeCompare(b) : numbers;
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
// What is folded is printed too.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
