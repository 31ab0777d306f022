// Step by step: a schedule as the grid of what every rank holds, recorded sends as lanes in time.

/** Shows a recording of steps in `el`: {view, title, says, steps, ...}; `at` is where it was left. */
function steps(el, data, at = {}) {
  const root = frame(el), last = data.says.length - 1
  const says = h("div", { "aria-live": "polite" }), count = h("output", { class: "count" })
  const pointed = h("div", { class: "soft", role: "status" }), sheet = h("div", { class: "sheet" })
  const paint = (data.view === "grid" ? gridOf : lanesOf)(data, said => (pointed.textContent = said))
  let clock = null
  const stop = () => {
    clearInterval(clock)
    clock = null
    play.textContent = "▶ Play"
  }
  const show = k => {
    at.set?.(k)
    says.textContent = data.says[k]
    count.textContent = `${k} of ${last}`
    pointed.textContent = ""
    const drawn = paint(k)
    drawn.setAttribute("aria-label", `${data.title}. ${data.says[k]}`)
    sheet.replaceChildren(drawn)
    if (drawn.dataset.x) sheet.scrollLeft = drawn.dataset.x * sheet.scrollWidth - sheet.clientWidth * 0.7 // to the step
    requestAnimationFrame(() => requestAnimationFrame(() => {
      for (const chip of drawn.querySelectorAll("[data-to]")) {
        chip.style.transform = chip.dataset.to
        chip.classList.add("there")
      }
    }))
    if (k === last) stop()
  }
  const range = slider("step", last, at.value ?? 0, show, k => data.says[k])
  const by = change => () => (stop(), range.go(+range.input.value + change))
  const play = h("button", { class: "primary", onclick: () => {
    if (clock) return stop()
    play.textContent = "Pause"
    range.go(+range.input.value === last ? 0 : +range.input.value + 1)
    if (+range.input.value < last) clock = setInterval(() => range.go(+range.input.value + 1), data.pause)
  } }, "▶ Play")
  range.input.addEventListener("pointerdown", stop)
  range.input.addEventListener("keydown", stop)
  root.append(
    h("b", {}, data.title),
    h("div", { class: "bar" }, play, h("button", { onclick: by(-1), "aria-label": "one step back" }, "◀"), range.input,
      h("button", { onclick: by(1), "aria-label": "one step on" }, "▶"), count),
    says, sheet, pointed)
  show(at.value ?? 0)
  if (data.plays && !still()) play.click()
}

// --- a schedule: rows are ranks, columns are chunks -------------------------------------------------

const CELL = { wide: 46, high: 30, right: 8, below: 22, left: 62 }

/** The states of a schedule, and who wrote what: states[k][rank][chunk] is an array of ranks, [] for nothing. */
function follow(data) {
  const states = [data.start], wrote = [new Map()]
  for (const [k, step] of data.steps.entries()) {
    const before = states[k], after = before.map(row => row.slice()), now = new Map(wrote[k])
    for (const [source, target, chunks, adds] of step) {
      for (const c of chunks) {
        after[target][c] = adds ? [...new Set([...after[target][c], ...before[source][c]])].sort((a, b) => a - b) : before[source][c]
        now.set(`${target} ${c}`, { step: k + 1, source, adds, earlier: now.get(`${target} ${c}`) })
      }
    }
    states.push(after)
    wrote.push(now)
  }
  return { states, wrote }
}

function gridOf(data, tell) {
  const { states, wrote } = follow(data), n = data.start.length, names = data.names
  const x = c => CELL.left + c * (CELL.wide + CELL.right), y = r => 8 + r * (CELL.high + CELL.below)
  const size = [x(names.length) + 4, y(n) - CELL.below + 10]
  const label = (parts, c) =>
    parts.length === n && n > 1 ? `Σ${names[c]}` : parts.length > 1 ? `${names[c]} ${parts.length}/${n}` : names[c]

  function cell(parts, r, c, fresh) {
    const full = parts.length === n && n > 1, fill = full ? DONE : parts.length === 1 ? colour(parts[0]) : "none"
    const partial = parts.length > 1 && !full, wide = (CELL.wide - 4) / n
    return h("g", { class: "held", "data-at": `${r} ${c}` },
      h("rect", { x: x(c), y: y(r), width: CELL.wide, height: CELL.high, rx: 4, fill: fill === "none" ? "transparent" : fill,
        stroke: fresh ? "var(--mark)" : "currentColor", "stroke-width": fresh ? 3 : 1,
        "stroke-opacity": fresh ? 1 : 0.45, "stroke-dasharray": parts.length ? null : "3 3" }),
      ...(partial ? parts : []).map(rank =>
        h("rect", { x: x(c) + 2 + rank * wide, y: y(r) + CELL.high - 8, width: wide - 1, height: 6, fill: colour(rank) })),
      parts.length ? words(x(c) + CELL.wide / 2, y(r) + CELL.high / 2 - 3 * partial, label(parts, c),
        { "text-anchor": "middle", fill: fill === "none" ? "currentColor" : inkOn(fill) }) : null)
  }

  function chip([source, target, , adds], c, parts) {
    const fill = parts.length === n && n > 1 ? DONE : parts.length === 1 ? colour(parts[0]) : "#ffffff"
    return h("g", { class: "moves fades", "data-to": `translate(0, ${y(target) - y(source)}px)` },
      h("circle", { cx: x(c) + CELL.wide / 2, cy: y(source) + CELL.high / 2, r: 10, fill, stroke: "#777", "pointer-events": "none" }),
      words(x(c) + CELL.wide / 2, y(source) + CELL.high / 2, (adds ? "+" : "") + names[c],
        { "text-anchor": "middle", "font-size": 11, fill: inkOn(fill), "pointer-events": "none" }))
  }

  /** The hops that brought what a cell holds: [from, to, step]. */
  function trail(r, c, write) {
    if (!write) return []
    const own = write.adds ? trail(r, c, write.earlier) : []
    return [...trail(write.source, c, wrote[write.step - 1].get(`${write.source} ${c}`)), ...own, [write.source, r, write.step]]
  }

  function origin(k, r, c) {
    const parts = states[k][r][c], write = wrote[k].get(`${r} ${c}`)
    if (!parts.length) return `rank ${r} holds nothing of ${names[c]} yet`
    const what = parts.length > 1 ? `the sum of ${listed(parts)}` : `from rank ${parts[0]}`
    if (!write) return `${names[c]} on rank ${r}: its own, from the start`
    return `${names[c]} on rank ${r}: ${what}; rank ${write.source} sent it in step ${write.step}` +
      (write.adds ? ", and it was added here" : "")
  }

  return k => {
    const step = k ? data.steps[k - 1] : [], fresh = new Set(step.flatMap(([, target, chunks]) => chunks.map(c => `${target} ${c}`)))
    const ways = h("g", { "pointer-events": "none" }), at = [0, 0]
    const drawn = drawing(...size)
    for (let r = 0; r < n; r++) {
      drawn.append(words(CELL.left - 10, y(r) + CELL.high / 2, `${r === data.root ? "★ " : ""}rank ${r}`, { "text-anchor": "end" }))
      for (const c of names.keys()) drawn.append(cell(states[k][r][c], r, c, fresh.has(`${r} ${c}`)))
    }
    drawn.append(ways, ...step.flatMap(message => message[2].map(c => chip(message, c, states[k - 1][message[0]][c]))))
    const point = (r, c) => {
      at[0] = r, at[1] = c
      tell(origin(k, r, c))
      const hops = trail(r, c, wrote[k].get(`${r} ${c}`))
      const arc = ([from, to], i) => {
        const side = x(c) + CELL.wide - 4, bow = side + 12 + 3 * (i % 3), [a, b] = [y(from), y(to)].map(v => v + CELL.high / 2)
        return h("path", { d: `M${side} ${a} Q${bow} ${(a + b) / 2} ${side} ${b}`, fill: "none", stroke: "var(--mark)", "stroke-width": 2.5 })
      }
      const ring = h("rect", { x: x(c) - 3, y: y(r) - 3, width: CELL.wide + 6, height: CELL.high + 6, rx: 6, fill: "none",
        stroke: "var(--mark)", "stroke-width": 2, "stroke-dasharray": "5 3" })
      ways.replaceChildren(ring, ...hops.map(arc))
    }
    pointable(drawn, point, () => (tell(""), ways.replaceChildren()), at, n, names.length)
    return drawn
  }
}

/** Lets mouse, finger and arrow keys point at the cells of a drawing: elements with data-at="row column". */
function pointable(drawn, point, leave, at, rows, columns) {
  const under = event => event.target.closest?.("[data-at]")
  const pointing = event => under(event) && point(...under(event).dataset.at.split(" ").map(Number))
  drawn.addEventListener("pointerover", pointing)
  drawn.addEventListener("click", pointing)
  drawn.addEventListener("pointerleave", leave)
  drawn.addEventListener("blur", leave)
  drawn.addEventListener("focus", () => drawn.matches(":focus-visible") && point(...at))
  drawn.addEventListener("keydown", event => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key]
    if (!move) return
    event.preventDefault()
    event.stopPropagation()
    point((at[0] + move[0] + rows) % rows, (at[1] + move[1] + columns) % columns)
  })
}

// --- recorded sends: rows are ranks, columns are steps ----------------------------------------------

function lanesOf(data, tell) {
  const ranks = data.ranks, pitch = ranks.length > 8 ? 30 : 46, row = new Map(ranks.map((rank, i) => [rank, i]))
  const long = Math.max(...data.steps.flat().map(([, , said]) => said.length), 0)
  const column = Math.min(150, Math.max(64, long * 7 + 34)), left = 62
  const y = rank => 22 + pitch * row.get(rank), x = step => left + step * column
  const notes = Math.max(0, ...Object.values(data.notes).map(said => said.length * 7 + 16))
  const wide = x(data.steps.length) + notes + 8, high = y(ranks.at(-1)) + 40

  function lane(rank, k) {
    const drawn = h("g"), own = data.owners.includes(rank)
    let from = left, tint = own ? colour(rank) : null
    const line = to => drawn.append(h("line", { x1: from, x2: to, y1: y(rank), y2: y(rank), "stroke-width": 6,
      stroke: tint ?? "currentColor", "stroke-opacity": tint ? 1 : 0.16 }))
    for (const [s, step] of data.steps.slice(0, k).entries()) {
      for (const [, target, , origin, arrived] of step) {
        if (own || target !== rank || !arrived) continue
        line(x(s + 1) - 12)
        from = x(s + 1) - 12
        tint = colour(origin)
      }
    }
    line(x(data.steps.length))
    return drawn
  }

  function message([source, target, said, origin, arrived], s, now, meets) {
    const fill = colour(origin), [x0, y0, x1, y1] = [x(s) + 12, y(source), x(s + 1) - 12, y(target)]
    const end = arrived ? 1 : 0.42, part = now && arrived ? 0.75 : meets ? 0.3 : 0.5 * end
    const at = t => [x0 + (x1 - x0) * t, y0 + (y1 - y0) * t], [cx, cy] = at(part), width = said.length * 7 + 12
    const line = h("line", { x1: x0, y1: y0, x2: at(end)[0], y2: at(end)[1], stroke: fill, "stroke-width": 2.2 })
    const tip = arrived ? h("circle", { cx: x1, cy: y1, r: 4, fill }) : words(...at(end), "✗", { "text-anchor": "middle" })
    const chip = h("g", { class: now && !still() ? "moves" : null }, said ? h("rect", { x: cx - width / 2, y: cy - 10, width, height: 20, rx: 4,
      fill, stroke: "#ffffff" }) : null, said ? words(cx, cy, said, { "text-anchor": "middle", fill: inkOn(fill), "font-size": 12 }) : null)
    if (now && !still()) {
      chip.style.transform = `translate(${x0 - cx}px, ${y0 - cy}px)`
      chip.dataset.to = "translate(0, 0)"
    }
    return h("g", { "data-at": `${s} ${data.steps[s].findIndex(m => m[0] === source && m[1] === target)}` }, line, tip, chip)
  }

  /** The ranks that passed a message's data on, first to last. */
  function way([source, target, said, origin], s) {
    for (let k = s - 1; k >= 0 && source !== origin; k--) {
      const before = data.steps[k].find(m => m[1] === source && m[3] === origin && m[2] === said)
      if (before) return [...way(before, k), target]
    }
    return [source, target]
  }

  return k => {
    const drawn = drawing(wide, high, { "data-x": x(k) / wide })
    for (const rank of ranks) drawn.append(words(left - 10, y(rank), `rank ${rank}`, { "text-anchor": "end" }), lane(rank, k))
    for (const [s, step] of data.steps.entries()) {
      const now = s === k - 1
      drawn.append(words(x(s) + column / 2, high - 12, `step ${s + 1}`,
        { "text-anchor": "middle", "font-size": 12, "font-weight": now ? 700 : 400, opacity: s < k ? 1 : 0.5 }))
      if (s >= k) continue
      const meets = m => step.some(other => other[0] === m[1] && other[1] === m[0])
      for (const m of step) drawn.append(m[0] == null ? "" : message(m, s, now, meets(m)))
    }
    if (k === data.steps.length) {
      for (const [rank, said] of Object.entries(data.notes)) drawn.append(words(x(k) + 8, y(+rank), said, { "font-size": 12 }))
    }
    const at = [Math.max(0, k - 1), 0]
    const point = (s, i) => {
      const m = data.steps[s]?.[i]
      if (!m || s >= k) return
      at[0] = s, at[1] = i
      const hops = way(m, s)
      tell(`${m[2] || "this message"}: ${m[3] == null ? "data that several ranks could have sent first" : `data of rank ${m[3]}`}, sent by rank ${m[0]} to rank ${m[1]} in step ${s + 1}` +
        (hops.length > 2 ? `; it came by ${hops.join(" → ")}` : "") + (m[4] ? "" : "; it never arrived"))
    }
    pointable(drawn, point, () => tell(""), at, data.steps.length, Math.max(...data.steps.map(step => step.length)))
    return drawn
  }
}
