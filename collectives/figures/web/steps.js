// Step by step: a schedule as the grid of what every rank holds, recorded sends as lanes in time.

const SLOW = 2 // steps that stay
const SLOW_PAUSE = 2200 // milliseconds

/** Shows a recording of steps in `el`: {view, title, says, steps, ...}; `at` is where it was left. */
function steps(el, data, at = {}) {
  const root = frame(el), last = data.says.length - 1
  const says = h("div", { "aria-live": "polite" }), count = h("output", { class: "count" })
  const [longest] = [...data.says].sort((a, b) => b.length - a.length) // it keeps the room, so nothing below moves
  const pointed = h("div", { class: "soft", role: "status" }), sheet = h("div", { class: "sheet" })
  const paint = (data.view === "grid" ? gridOf : lanesOf)(data, said => (pointed.textContent = said))
  let clock = null
  const stop = () => {
    clearTimeout(clock)
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
      for (const part of drawn.querySelectorAll("[data-to], .comes, .goes")) {
        if (part.dataset.to) part.style.transform = part.dataset.to
        part.classList.add("there")
      }
    }))
    if (k === last) stop()
  }
  const range = slider("step", last, at.value ?? 0, show, k => data.says[k])
  const by = change => () => (stop(), range.go(+range.input.value + change))
  const play = h("button", { class: "primary", onclick: () => {
    if (clock) return stop()
    play.textContent = "Pause"
    onward(+range.input.value === last ? 0 : +range.input.value + 1)
  } }, "▶ Play")
  /** Go to a step, and after a while to the next: slowly at first, when there is most to read. */
  const onward = k => {
    range.go(k)
    if (k < last) clock = setTimeout(() => onward(k + 1), k <= SLOW ? SLOW_PAUSE : data.pause)
  }
  range.input.addEventListener("pointerdown", stop)
  range.input.addEventListener("keydown", stop)
  root.append(
    h("b", {}, data.title),
    h("div", { class: "bar" }, play, h("button", { onclick: by(-1), "aria-label": "one step back" }, "◀"), range.input,
      h("button", { onclick: by(1), "aria-label": "one step on" }, "▶"), count),
    h("div", { class: "roomy", "data-longest": longest }, says), sheet, pointed)
  show(at.value ?? 0)
  if (data.plays && !still()) whenSeen(sheet, () => clock || play.click())
}

/** Does something once, when most of an element, or most of the window, shows it. */
function whenSeen(element, does) {
  const threshold = 0.6 * Math.min(1, innerHeight / element.offsetHeight)
  const watching = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && (watching.disconnect(), does()), { threshold })
  watching.observe(element)
}

// --- a schedule: rows are ranks, columns are chunks -------------------------------------------------

const CELL = { wide: 46, high: 30, right: 16, below: 22, left: 72 }

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
  const size = [x(names.length) + 8, y(n) - CELL.below + 10]
  const label = (parts, c) =>
    parts.length === n && n > 1 ? `Σ${names[c]}` : parts.length > 1 ? `${names[c]} ${parts.length}/${n}` : names[c]

  /** A cell that holds the parts of a sum. how: whether it comes or goes with a message's arrival. */
  function cell(parts, r, c, fresh, how = "") {
    const full = parts.length === n && n > 1, fill = full ? DONE : parts.length === 1 ? colour(parts[0]) : "none"
    const partial = parts.length > 1, wide = (CELL.wide - 4) / n // the stripes: whose sum it is
    return h("g", { class: `held ${how}`, "data-at": `${r} ${c}`, "pointer-events": how === "goes" ? "none" : null },
      h("rect", { x: x(c), y: y(r), width: CELL.wide, height: CELL.high, rx: 4, fill: fill === "none" ? "transparent" : fill,
        stroke: fresh ? "var(--mark)" : "currentColor", "stroke-width": fresh ? 3 : 1,
        "stroke-opacity": fresh ? 1 : 0.45, "stroke-dasharray": parts.length ? null : "3 3" }),
      ...(partial ? parts : []).map(rank =>
        h("rect", { x: x(c) + 2 + rank * wide, y: y(r) + CELL.high - 8, width: wide - 1, height: 6, fill: colour(rank),
          stroke: edge(colour(rank)) })),
      parts.length ? words(x(c) + CELL.wide / 2, y(r) + CELL.high / 2 - 3 * partial, label(parts, c),
        { "text-anchor": "middle", fill: fill === "none" ? "currentColor" : inkOn(fill) }) : null)
  }

  /** From a rank to another, beside the cells of a chunk: a bow, whose head is at the cell that it reaches. */
  function arrow(from, to, c, bend, more) {
    const side = x(c) + CELL.wide + 1, bow = side + 16 + 3 * (bend % 3), [a, b] = [y(from), y(to)].map(v => v + CELL.high / 2)
    return h("path", { d: `M${side} ${a} Q${bow} ${(a + b) / 2} ${side + 5} ${b} M${side + 6} ${b - 4} L${side} ${b} L${side + 6} ${b + 4}`,
      fill: "none", "pointer-events": "none", ...more })
  }

  /** What travels, beside the cells too: it covers no letters. */
  function chip([source, target, , adds], c, parts) {
    const full = parts.length === n && n > 1, fill = full ? DONE : parts.length === 1 ? colour(parts[0]) : "#ffffff"
    const [left, top] = [x(c) + CELL.wide + CELL.right / 2, y(source) + CELL.high / 2]
    return h("g", { class: "moves fades", "data-to": `translate(0, ${y(target) - y(source)}px)`, "pointer-events": "none" },
      h("circle", { cx: left, cy: top, r: 11, fill, stroke: fill === "#ffffff" ? "#8889" : "var(--edge)" }),
      words(left, top, (adds ? "+" : full ? "Σ" : "") + names[c], { "text-anchor": "middle", "font-size": 11, fill: inkOn(fill) }))
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
      for (const c of names.keys()) {
        if (!fresh.has(`${r} ${c}`)) drawn.append(cell(states[k][r][c], r, c))
        else drawn.append(cell(states[k - 1][r][c], r, c, false, "goes"), cell(states[k][r][c], r, c, true, "comes"))
      }
    }
    const sent = step.flatMap((message, i) => message[2].map(c => [message, c, i]))
    drawn.append(...sent.map(([[from, to], c, i]) => arrow(from, to, c, i, { stroke: "currentColor", "stroke-opacity": 0.6, "stroke-width": 1.5 })),
      ways, ...sent.map(([message, c]) => chip(message, c, states[k - 1][message[0]][c])))
    const point = (r, c) => {
      at[0] = r, at[1] = c
      tell(origin(k, r, c))
      const hops = trail(r, c, wrote[k].get(`${r} ${c}`))
      const arc = ([from, to], i) => arrow(from, to, c, i, { stroke: "var(--mark)", "stroke-width": 2.5 })
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

/** A line, over a wider one that edges it. Without a tint: a lane that nothing came into yet. */
const lined = (ends, wide, tint) => [
  tint && h("line", { ...ends, "stroke-width": wide + 2, stroke: edge(tint) }),
  h("line", { ...ends, "stroke-width": wide, stroke: tint ?? "currentColor", "stroke-opacity": tint ? 1 : 0.16 }),
].filter(Boolean)

function lanesOf(data, tell) {
  const ranks = data.ranks, pitch = ranks.length > 8 ? 30 : 46, row = new Map(ranks.map((rank, i) => [rank, i]))
  const long = Math.max(...data.steps.flat().map(([, , said]) => said.length), 0)
  const column = Math.min(150, Math.max(64, long * 7 + 34)), left = 62
  const y = rank => 22 + pitch * row.get(rank), x = step => left + step * column
  const notes = Math.max(0, ...Object.values(data.notes).map(said => said.length * 7 + 16))
  const wide = x(data.steps.length) + notes + 8, high = y(ranks.at(-1)) + 40

  /** A rank's line after k steps: what step k brings replaces what is there as its message arrives. */
  function lane(rank, k) {
    const drawn = h("g"), own = data.owners.includes(rank), end = x(data.steps.length)
    let from = left, tint = own ? colour(rank) : null, how = null
    const line = (to, how) => drawn.append(h("g", { class: how }, ...lined({ x1: from, x2: to, y1: y(rank), y2: y(rank) }, 6, tint)))
    for (const [s, step] of data.steps.slice(0, k).entries()) {
      for (const [, target, , origin, arrived] of step) {
        if (own || target !== rank || !arrived) continue
        line(x(s + 1) - 12)
        from = x(s + 1) - 12
        if (s === k - 1) line(end, "goes")
        tint = colour(origin)
        how = s === k - 1 ? "comes" : null
      }
    }
    line(end, how)
    return drawn
  }

  const slope = ([source, target], s) => t => [x(s) + 12 + (column - 24) * t, y(source) + (y(target) - y(source)) * t]
  const chipWidth = said => said.length * 7 + 12

  /** How far along its line the chip of each message of a step is: near where it should be, and over no other chip. */
  function chips(step, s, now) {
    const taken = [], parts = new Map(), meets = m => step.some(other => other[0] === m[1] && other[1] === m[0])
    const short = step.filter(m => m[0] != null).sort((a, b) => Math.abs(row.get(a[0]) - row.get(a[1])) - Math.abs(row.get(b[0]) - row.get(b[1])))
    for (const m of short) {
      const end = m[4] ? 1 : 0.42, best = now && m[4] ? 0.75 : meets(m) ? 0.3 : 0.5 * end, at = slope(m, s), width = chipWidth(m[2])
      const free = t => taken.every(([cx, cy, wide]) => Math.abs(at(t)[0] - cx) >= (width + wide) / 2 + 2 || Math.abs(at(t)[1] - cy) >= 22)
      const others = Array.from({ length: 41 }, (_, i) => (0.1 + 0.02 * i) * end).sort((a, b) => Math.abs(a - best) - Math.abs(b - best))
      const part = [best, ...others].find(free) ?? best
      parts.set(m, part)
      if (m[2]) taken.push([...at(part), width])
    }
    return parts
  }

  /** A message's line, and the chip to draw over all lines. */
  function message(m, s, now, part) {
    const [, , said, origin, arrived] = m, fill = colour(origin), at = slope(m, s), [cx, cy] = at(part), width = chipWidth(said)
    const [[x0, y0], [x1, y1]] = [at(0), at(arrived ? 1 : 0.42)], place = { "data-at": `${s} ${data.steps[s].indexOf(m)}` }
    const tip = arrived ? h("circle", { cx: x1, cy: y1, r: 4, fill, stroke: edge(fill) }) : words(x1, y1, "✗", { "text-anchor": "middle" })
    const line = h("g", place, ...lined({ x1: x0, y1: y0, x2: x1, y2: y1 }, 2.2, fill), tip)
    const chip = said && h("g", { ...place, class: now && !still() ? "moves" : null },
      h("rect", { x: cx - width / 2, y: cy - 10, width, height: 20, rx: 4, fill, stroke: "#ffffff" }),
      words(cx, cy, said, { "text-anchor": "middle", fill: inkOn(fill), "font-size": 12 }))
    if (chip && now && !still()) {
      chip.style.transform = `translate(${x0 - cx}px, ${y0 - cy}px)`
      chip.dataset.to = "translate(0, 0)"
    }
    return [line, chip || null]
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
      const made = [...chips(step, s, now)].map(([m, part]) => message(m, s, now, part))
      drawn.append(...made.map(([line]) => line), ...made.map(([, chip]) => chip).filter(Boolean))
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
