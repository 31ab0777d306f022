// A notebook's cell on a page: written by the reader, run on pretended ranks by Python next to the page, and shown.

const RUNNABLE = [] // of this page: {notebook, name, count()}
const CELL_SECONDS = 30 // that a cell may take
const FRAGMENT = "#code=" // of a link that holds a cell: its place and its text

/** A cell in `el`: {notebook, name, source, before ([{source, place}] of the cells above), check (the function that is a task), tasks (how many
 * the page has), weighs, place}. */
function runnable(el, data) {
  const root = frame(el, WRITE + RUNNABLE_STYLE), memory = remembered(data.place), solved = remembered(`solved ${data.notebook}`)
  const keep = text => memory.set(text === data.source ? undefined : text)
  const load = () => SERVED && python.prepare({ cell: null }, () => {}).catch(() => {}), code = editor(data.name, keep, judge, load)
  const says = h("div", { role: "status" }), out = h("div", { class: "outputs" }), count = h("span", { class: "soft count" })
  const meter = h("progress", { max: data.weighs, value: 0, "aria-label": "loading Python", hidden: true })
  const run = h("button", { class: "primary", onclick: judge }, "Run")
  const recorded = following(el.parentElement) // what the cell shows until it is run here
  const again = h("button", { onclick: () => (code.fill(data.source), keep(data.source), code.field.focus()) }, "Begin again")
  const share = h("button", { onclick: link }, "Copy a link")
  root.append(code.box, h("div", { class: "bar" }, run, again, share, meter, count), says, out)
  code.fill(memory.value ?? data.source)
  code.field.addEventListener("focus", select)
  RUNNABLE.push({ notebook: data.notebook, recount })
  recount()
  opened()
  prefetch(el, load) // of pages.js

  /** The first visit to the field selects the line to be written. */
  function select() {
    const at = code.text().indexOf("raise NotImplementedError()")
    if (at < 0 || code.field.dataset.visited) return
    code.field.dataset.visited = "yes"
    const end = code.text().indexOf("\n", at)
    setTimeout(() => { // after the click has placed the cursor, unless it selects something
      if (code.field.selectionStart === code.field.selectionEnd) code.field.setSelectionRange(at, end < 0 ? code.text().length : end)
    })
  }

  /** What the link holds, if it is of this cell. */
  async function opened() {
    if (!location.hash.startsWith(FRAGMENT)) return
    const [place, packed] = location.hash.slice(FRAGMENT.length).split(":")
    if (decodeURIComponent(place) !== data.name || !packed) return
    try {
      code.fill(await unpack(packed))
      says.textContent = "This is the code of the link. What you wrote before is kept until you change it."
    } catch {
      says.textContent = "The link is damaged: its code cannot be read."
    }
    el.scrollIntoView({ block: "center" })
  }

  async function link() {
    const address = `${location.href.split("#")[0]}${FRAGMENT}${encodeURIComponent(data.name)}:${await pack(code.text())}`
    history.replaceState(null, "", address)
    try {
      await navigator.clipboard.writeText(address)
      says.textContent = "The link is copied: it opens this page with your code."
    } catch {
      says.textContent = "The address is now the link."
    }
  }

  function recount() {
    const done = remembered(`solved ${data.notebook}`).value ?? []
    if (data.check) count.textContent = `${done.includes(data.check) ? "✓ solved, " : ""}${done.length} of ${data.tasks}`
  }

  async function judge() {
    if (run.ariaBusy) return
    run.ariaBusy = true
    says.textContent = "Running"
    const before = data.before.map(above => remembered(above.place).value ?? above.source)
    const finished = remembered(`solved ${data.notebook}`).value ?? []
    const asked = { notebook: data.notebook, before, source: code.text(), check: data.check, finished }
    const progress = loaded => {
      meter.hidden = false
      meter.value = loaded
      says.textContent = loading(loaded, data.weighs)
    }
    try {
      python.progress = progress
      await python.prepare({ cell: null }, progress)
      says.textContent = "Running"
      show(await python.ask({ cell: asked }, progress, CELL_SECONDS * 1000,
        `After ${CELL_SECONDS} s the cell was still running, so it was ended. Which loop has no end?`))
    } catch (reason) {
      out.replaceChildren()
      says.replaceChildren(h("pre", { class: "prose no" }, `✗ ${reason.message}`))
    }
    meter.hidden = true
    run.ariaBusy = null
  }

  function show(result) {
    code.renumber(result.line)
    for (const stored of recorded) stored.remove()
    says.replaceChildren(result.failure ? message(result.failure) : "")
    if (!result.failure && !result.outputs.length) says.textContent = "Done: it defines what the next cells use."
    out.replaceChildren(...result.outputs.flatMap(({ text, words, picture: image }) => [
      ...(text ? [h("pre", { class: "text" }, text)] : []),
      ...(image ? [picture(image)] : []),
      ...(words ? [h("details", { class: "twin" }, h("summary", {}, "as text"), h("pre", {}, words))] : [])]))
    if (result.failure || !data.check) return
    const done = new Set(remembered(`solved ${data.notebook}`).value ?? []).add(result.solved)
    solved.set([...done])
    for (const edited of RUNNABLE) edited.recount()
    says.replaceChildren(h("div", { class: "yes" }, "✓ Right."))
  }

  /** A failure: sentences, and what stands in columns. */
  function message(failure) {
    const groups = []
    for (const line of failure.split("\n")) {
      const columns = line.startsWith("  "), last = groups.at(-1)
      if (last?.columns === columns) last.lines.push(line)
      else groups.push({ columns, lines: [line] })
    }
    return h("div", { class: "failure" }, ...groups.map(({ columns, lines }, k) => h("pre",
      columns ? { tabindex: 0 } : { class: `prose ${k ? "" : "no"}` }, `${k ? "" : "✗ "}${lines.join("\n")}`)))
  }
}

/** The elements after one. */
function following(element) {
  const found = [...element.parentElement.children]
  return element.closest(".cell_output") ? found.slice(found.indexOf(element) + 1).filter(part => part.tagName !== "SCRIPT") : []
}

/** For a link. */
async function pack(text) {
  const squeezed = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"))
  const bytes = new Uint8Array(await new Response(squeezed).arrayBuffer())
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")
}

function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text()
}

const RUNNABLE_STYLE = `
.collectives .bar .count { min-height: 0; margin-left: auto }
.collectives .failure pre { font: 13px/1.45 ui-monospace, monospace; margin: 4px 0 }
.collectives .failure pre.prose { font: inherit }
.collectives .outputs pre.text { font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.collectives .outputs .picture { overflow-x: auto }
.collectives .outputs .picture img { max-width: none }
body[data-theme=light] .collectives .outputs img { color-scheme: light }
body[data-theme=dark] .collectives .outputs img { color-scheme: dark }`
