// explore() on a page: the runs were made when the notebook was executed, and one is looked up for every setting.

async function explore(el, data, address) {
  const { rows, runs } = await unpacked(data.packed)
  const values = Object.fromEntries(data.controls.map(control => [control.name, control.options]))
  const answer = at => {
    const chosen = Object.fromEntries(Object.keys(values).map(name => [name, values[name][at[name]]]))
    const off = data.off[chosen.op], most = { root: chosen.world_size - 1 }
    chosen.root = Math.min(chosen.root, most.root)
    const of = Object.entries(chosen).map(([name, value]) => (off[name] ? "-" : value)), [title, ...sides] = runs[of.join(" ")]
    const [before, after] = sides.map(places => places.map(place => rows[place]))
    return {
      grid: { title, root: off.root ? null : chosen.root, before, after }, words: title, off, most, at: { root: chosen.root },
      code: data.codes[chosen.op].replace(/\{(\w+)\}/g, (_, name) => chosen[name]),
    }
  }
  const now = answer(Object.fromEntries(data.controls.map(control => [control.name, control.at])))
  panel(el, { ...data, now }, { address }, async at => answer(at))
}

/** What explore.py's pack() made. */
function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json()
}

const MOST = 24 // letters of a cell's numbers: of what is longer the name is shown

/** What every rank held before a call and after it; pointing at a cell shows where its data came from. */
function beforeAndAfter(grid, tell) {
  const rows = [...grid.before, ...grid.after], letters = rows.some(row => row.length > 2)
  const said = cell => (letters || !cell[1] || cell[1].length > MOST ? cell[0] : cell[1])
  const longest = Math.max(...rows.flat().map(cell => said(cell).length))
  const cell = { wide: Math.max(34, longest * 7 + 14), high: 30, step: 40 }
  const columns = side => Math.max(1, ...grid[side].map(row => row.length)), across = side => columns(side) * (cell.wide + 4)
  const down = 24 + grid.before.length * cell.step, at = [0, 0]
  const stacked = matchMedia("(max-width: 500px)").matches && 116 + across("before") + across("after") > 350 // a phone
  const left = { before: 72, after: stacked ? 72 : 116 + across("before") }, top = { before: 24, after: stacked ? down + 44 : 24 }
  const size = [left.after + (stacked ? Math.max(across("before"), across("after")) : across("after")), stacked ? 2 * down + 20 : down]
  const x = (side, c) => left[side] + c * (cell.wide + 4), y = (side, r) => top[side] + r * cell.step
  const drawn = drawing(...size, { "aria-label": grid.title }), ways = h("g", { "pointer-events": "none" })
  const base = letter => letter.replace(/[^a-z]/g, "")

  for (const side of ["before", "after"]) {
    drawn.append(words(left[side] + across(side) / 2, top[side] - 15, side, { "text-anchor": "middle", "font-size": 12 }))
    for (const [r, row] of grid[side].entries()) {
      for (const [c, held] of row.entries()) {
        const origin = held[2], fill = origin >= 0 ? colour(origin) : origin === -2 ? DONE : "transparent"
        drawn.append(h("g", side === "after" ? { "data-at": `${r} ${c}` } : {},
          h("rect", { x: x(side, c), y: y(side, r), width: cell.wide, height: cell.high, rx: 4, fill, stroke: "currentColor", "stroke-opacity": 0.45,
            "stroke-dasharray": fill === "transparent" ? "3 3" : null }),
          words(x(side, c) + cell.wide / 2, y(side, r) + cell.high / 2, origin === -3 ? "?" : said(held),
            { "text-anchor": "middle", fill: fill === "transparent" ? "currentColor" : inkOn(fill) })))
      }
    }
  }
  for (const side of stacked ? ["before", "after"] : ["before"]) {
    for (const r of grid.before.keys()) {
      drawn.append(words(64, y(side, r) + cell.high / 2, `${r === grid.root ? "★ " : ""}rank ${r}`, { "text-anchor": "end" }))
    }
  }
  const arrow = stacked ? [left.before + across("before") / 2, down + 8, "↓"] : [left.after - 24, size[1] / 2 + 8, "→"]
  drawn.append(words(...arrow, { "text-anchor": "middle", "font-size": 20 }), ways)

  /** The cells that went into one that a rank was left with: [rank, column]. */
  const sources = held => grid.before.flatMap((row, r) => row.flatMap((given, c) =>
    held[2] === -2 ? (base(given[0]) === base(held[0]) ? [[r, c]] : []) : given[0] === held[0] && r === held[2] ? [[r, c]] : []))

  const between = ([x1, y1], [x2, y2]) => (stacked
    ? { x1: x1 + cell.wide / 2, y1: y1 + cell.high + 3, x2: x2 + cell.wide / 2, y2: y2 - 3 }
    : { x1: x1 + cell.wide + 3, y1: y1 + cell.high / 2, x2: x2 - 3, y2: y2 + cell.high / 2 })

  const point = (r, c) => {
    const held = grid.after[r]?.[c]
    at[0] = r, at[1] = c
    if (!held) return
    const from = sources(held), ranks = [...new Set(from.map(([rank]) => rank))]
    const what = `${held[0]}${held[1] && held[1] !== held[0] ? ` (${held[1]})` : ""} on rank ${r}`
    tell(held[2] === -3 ? `rank ${r}: undefined, nothing is promised here`
      : held[2] === -2 && ranks.length ? `${what}: combined from ${listed(ranks)}` : held[2] >= 0 ? `${what}: from rank ${held[2]}` : what)
    const mark = (left, top) => h("rect", { x: left - 3, y: top - 3, width: cell.wide + 6, height: cell.high + 6, rx: 6, fill: "none", stroke: "var(--mark)",
      "stroke-width": 2.5 })
    ways.replaceChildren(mark(x("after", c), y("after", r)), ...from.map(([rank, k]) => mark(x("before", k), y("before", rank))), ...from.map(([rank, k]) =>
      h("line", { ...between([x("before", k), y("before", rank)], [x("after", c), y("after", r)]), stroke: "var(--mark)", "stroke-width": 1.6,
        "stroke-opacity": 0.8 })))
  }
  pointable(drawn, point, () => (tell(grid.title), ways.replaceChildren()), at, grid.after.length, columns("after"))
  return drawn
}
