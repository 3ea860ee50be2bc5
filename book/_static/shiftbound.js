// The ledger's filters: by source and by verdict. Without scripts the whole table stands there.
document.addEventListener("DOMContentLoaded", () => {
  for (const ledger of document.querySelectorAll(".sb-ledger")) {
    const rows = [...ledger.querySelectorAll("tbody tr")];
    const bar = document.createElement("div");
    bar.className = "sb-ledger-filters";
    const count = document.createElement("span");
    count.setAttribute("aria-live", "polite");
    const choices = {};
    const apply = () => {
      let shown = 0;
      for (const row of rows) {
        const fits = Object.entries(choices).every(
          ([key, select]) => !select.value || row.dataset[key].split(",").includes(select.value));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    for (const key of ["source", "verdict"]) {
      const values = [...new Set(rows.flatMap((row) => row.dataset[key].split(",")))].sort();
      const label = document.createElement("label");
      const select = document.createElement("select");
      select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
      select.addEventListener("change", apply);
      label.append(key, select);
      bar.append(label);
      choices[key] = select;
    }
    bar.append(count);
    ledger.prepend(bar);
    apply();
  }
});
