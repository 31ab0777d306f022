// What algorithms cost, α-β: latency x steps + bytes / bandwidth. How many of each there are was counted from the
// algorithms themselves, at every number of ranks that the slider has. And what NCCL takes on networks side by side: the
// price and its band, from a table at every number of GPUs and size.

const SIZES = Array.from({ length: 32 }, (_, k) => 2 ** (k + 3)) // 8 B to 16 GiB

/** Bytes in their largest unit; a power of two has no fraction. */
function inBytes(n) {
  const unit = ["B", "KiB", "MiB", "GiB"], k = Math.min(3, Math.floor(Math.log2(n) / 10))
  return `${n / 2 ** (10 * k)} ${unit[k]}`
}

/** Seconds, with three figures. */
function inTime(t) {
  const [by, unit] = t < 1e-3 ? [1e6, "µs"] : t < 1 ? [1e3, "ms"] : [1, "s"]
  return `${+(t * by).toPrecision(3)} ${unit}`
}

/** A slider for each [name, label, values, how a value is said]; each sets here[name], keeps `here` in `at`, and shows. */
function sliders(controls, here, at, show) {
  const lines = controls.map(([name, label, values, said]) => {
    here[name] = Math.min(here[name], values.length - 1) // a link may have been changed by hand
    const value = h("output", {}, said(values[here[name]]))
    const { input } = slider(label, values.length - 1, here[name], i => {
      here[name] = i
      value.textContent = said(values[i])
      at.set?.({ ...here })
      show()
    }, i => said(values[i]))
    return h("label", { class: "slide" }, h("span", {}, label), input, value)
  })
  return h("div", { class: "sliders" }, ...lines)
}

const HALO = "paint-order: stroke; stroke: var(--jp-layout-color0, var(--color-background-primary)); stroke-width: 4px" // no line crosses a word

/**
 * A drawing of rows {name, time, said}, and where a time is in it. On a log scale: whole decades from below the least to
 * beyond the most, each with its line and its time.
 */
function decades(rows, least, most) {
  const low = Math.floor(Math.log10(least)), high = Math.floor(Math.log10(most)) + 1, bottom = rows.length * 44 + 2
  const x = time => 2 + (200 * (Math.log10(time) - low)) / (high - low)
  const drawn = drawing(360, bottom + 36, { "aria-label": rows.map(row => `${row.name}: ${row.said ?? inTime(row.time)}`).join("; "), tabindex: null })
  for (let decade = low; decade <= high; decade++) {
    const at = x(10 ** decade), said = (decade - low) % Math.ceil((high - low) / 3) ? "" : inTime(10 ** decade)
    drawn.append(h("line", { x1: at, x2: at, y1: 18, y2: bottom + 4, stroke: "currentColor", "stroke-opacity": 0.25 }),
      words(at, bottom + 12, said, { "text-anchor": decade > low ? "middle" : "start", "font-size": 12 }))
  }
  drawn.append(words(2, bottom + 28, "log scale: each line is ten times the one before", { "font-size": 12 }))
  return { drawn, x }
}

/** Sliders over {algorithms: [{name, steps, share}], ranks, latency, bandwidth}; shares are of the buffer's bytes. */
function cost(el, data, at = {}) {
  if (data.kind === "prices") return prices(el, data, at)
  const root = frame(el), says = h("div", { "aria-live": "polite" }), sheet = h("div", { class: "sheet" })
  const here = { ...data.at, ...at.value }
  const controls = [
    ["ranks", "ranks", data.ranks, n => n.toLocaleString("en")], ["bytes", "buffer", SIZES, inBytes],
    ["latency", "latency", data.latency, inTime], ["bandwidth", "bandwidth", data.bandwidth, b => `${b / 1e9} GB/s`],
  ]
  root.append(h("b", {}, data.title), sliders(controls, here, at, show), says, sheet)

  function show() {
    const [n, bytes, alpha, bandwidth] = controls.map(([name, , values]) => values[here[name]])
    const rows = data.algorithms.map((algorithm, i) => {
      const latency = algorithm.steps[here.ranks] * alpha, transfer = (algorithm.share[here.ranks] * bytes) / bandwidth
      return { name: algorithm.name, i, time: latency + transfer, waits: latency / (latency + transfer) }
    }).sort((a, b) => a.time - b.time)
    const [best] = rows
    says.textContent = `${n.toLocaleString("en")} ranks, ${inBytes(bytes)}: ${best.name} is fastest with ${inTime(best.time)}, ` +
      `${Math.round(100 * best.waits)}% of it latency`
    const { drawn, x } = decades(rows, best.time, rows.at(-1).time)
    for (const [k, row] of rows.entries()) {
      const end = x(row.time)
      drawn.append(words(2, k * 44 + 10, row.name, { style: HALO }), h("rect", { x: 2, y: k * 44 + 20, width: end - 2, height: 16, rx: 3,
        fill: k ? "currentColor" : "var(--mark)", "fill-opacity": k ? 0.35 : 1 }),
        words(end + 7, k * 44 + 28, `${inTime(row.time)}, ${Math.round(100 * row.waits)}% latency`, { "font-size": 12, style: HALO }))
    }
    sheet.replaceChildren(drawn)
  }
  show()
}

/** A number of a row of numbers between spaces. */
const nth = (row, k) => +row.split(" ")[k]

/** Choices and sliders over {title, collectives: [{name, seconds: [network][gpus], a row over sizes}], networks: [{name, most, low, high}], gpus, bytes}. */
function prices(el, data, at = {}) {
  const root = frame(el), says = h("div", { "aria-live": "polite" }), sheet = h("div", { class: "sheet" })
  const here = { ...data.at, ...at.value }
  const controls = [
    ["collective", "collective", data.collectives.map(each => each.name), String],
    ["gpus", "GPUs", data.gpus, n => n.toLocaleString("en")], ["bytes", "buffer", data.bytes, inBytes],
  ]
  root.append(h("b", {}, data.title), sliders(controls, here, at, show), says, sheet)

  function show() {
    const { name, seconds } = data.collectives[here.collective], gpus = data.gpus[here.gpus]
    const rows = data.networks.map((network, k) => {
      const time = nth(seconds[k][here.gpus], here.bytes), beyond = gpus > network.most
      return { name: network.name, time, low: time * nth(network.low, here.bytes), high: time * nth(network.high, here.bytes), beyond }
    })
    const best = rows.reduce((a, b) => (b.time < a.time ? b : a)), far = rows.filter(row => row.beyond)
    says.textContent = `${name} of ${inBytes(data.bytes[here.bytes])} on ${gpus.toLocaleString("en")} GPUs: ${best.name} takes ` +
      `${inTime(best.time)}, nine of ten systems ${inTime(best.low)} to ${inTime(best.high)}` +
      (far.length ? `. Extrapolated for ${far.map(row => row.name).join(", ")}: nobody has published so many GPUs` : "")
    for (const row of rows) row.said = `${inTime(row.time)}, ${inTime(row.low)} to ${inTime(row.high)}`
    const { drawn, x } = decades(rows, Math.min(...rows.map(row => row.low)), Math.max(...rows.map(row => row.high)))
    for (const [k, row] of rows.entries()) {
      const y = k * 44 + 20
      drawn.append(words(2, k * 44 + 10, row.beyond ? `${row.name}, extrapolated` : row.name, { style: HALO }),
        h("rect", { x: x(row.low), y, width: x(row.high) - x(row.low), height: 16, rx: 3, fill: "currentColor", "fill-opacity": 0.22 }),
        h("rect", { x: x(row.time) - 1.5, y: y - 2, width: 3, height: 20, fill: row.beyond ? "none" : "var(--mark)", stroke: "var(--mark)" }),
        words(x(row.high) + 8, y + 8, inTime(row.time), { "font-size": 12, style: HALO }))
    }
    sheet.replaceChildren(drawn)
  }
  show()
}
