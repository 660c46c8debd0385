// Makes tables of class "sortable" sortable: a click on a heading sorts by that column, a second click reverses the order.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.ariaSort === "ascending" ? -1 : 1;
      const text = (row) => row.cells[column].textContent;
      const byName = (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
      body.append(...[...body.rows].sort((a, b) => down * (column ? number(text(a)) - number(text(b)) : byName(a, b))));
      for (const each of heads) each.ariaSort = each === head ? (down > 0 ? "ascending" : "descending") : null;
    });
  });
}

function number(text) {
  return Number(text.replaceAll(",", ""));
}
