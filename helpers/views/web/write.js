// A cell that is written on the page. Python comes on the first click, from where the page came from, and runs in a worker;
// what does not end is ended with it.

const HERE = document.currentScript?.src // of the script that holds this file
const SERVED = location.protocol !== "file:"
const PATIENCE = 10000 // milliseconds that code may take
const LOADING = 120000 // and that the library may take to load

/** Python, one for all of a page: promises what the library answers. */
const python = {
  run(source, task, progress) {
    return this.ask({ source, task }, progress)
  },
  /** question: as worker.mjs takes it; progress: told how many bytes are loaded; patience: milliseconds; late: said after them. */
  ask(question, progress, patience = PATIENCE,
    late = `After ${PATIENCE / 1000} s the code was still running, so it was ended. Which loop has no end?`) {
    const answer = this.last.then(() => this.asked(question, progress, patience, late))
    this.last = answer.catch(() => {}) // one at a time
    return answer
  },
  last: Promise.resolve(),
  /** Load what a kind of question needs before it is asked. */
  prepare(question, progress) {
    return this.ask(question, progress, LOADING, "Python did not start in time. Reload the page to try again.")
  },
  async asked(question, progress, patience, late) {
    if (!SERVED) throw new Error("Python loads from a server only, not from a file. In the site's folder: python -m http.server")
    this.begin(progress)
    await this.ready
    return new Promise((done, failed) => {
      const clock = setTimeout(() => {
        this.worker.terminate()
        this.worker = null
        this.begin(() => {}) // for the next run
        failed(new Error(late))
      }, patience)
      this.worker.onmessage = ({ data }) => (clearTimeout(clock), done(data.result))
      this.worker.postMessage(question)
    })
  },
  begin(progress) {
    this.progress = progress
    if (this.worker || !SERVED) return
    const worker = (this.worker = new Worker(new URL("python/worker.mjs", HERE), { type: "module" }))
    this.ready = new Promise((done, failed) => {
      const fail = words => {
        worker.terminate()
        this.worker = null // the next click tries again
        failed(new Error(`Python could not be loaded: ${words}`))
      }
      worker.onerror = event => fail(event.message ?? "the worker cannot be started")
      worker.onmessage = ({ data }) => (data.loaded ? this.progress(data.loaded) : data.ready ? done() : fail(data.failure))
    })
    this.ready.catch(() => {}) // whoever awaits it says it
  },
}

const loading = (loaded, whole) => `Loading Python: ${Math.min(100, Math.round((100 * loaded) / whole))}%`

/** A field for Python with numbered lines: {box, text(), fill(text), renumber(wrong line)}.  run: called by Ctrl, Meta or Shift + Enter. */
function editor(name, keep, run, prepare = () => python.worker || python.begin(() => {})) {
  const numbers = h("pre", { "aria-hidden": "true" })
  const field = h("textarea", { "aria-label": `Python: ${name}`, spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off",
    "aria-description": "Tab indents. To leave the field by keyboard, press Escape, then Tab. Ctrl + Enter runs the code.",
    oninput: () => (renumber(), keep(field.value)), onkeydown: typed,
    onfocus: prepare }) // Python is there when the first line is written

  function fill(text) {
    field.value = text
    renumber()
  }

  /** The numbers of the lines; `wrong` is marked. */
  function renumber(wrong) {
    const count = field.value.split("\n").length
    field.rows = Math.min(40, count)
    numbers.replaceChildren(...Array.from({ length: count }, (_, k) => h("span", k + 1 === wrong ? { class: "no" } : {}, `${k + 1 === wrong ? "✗ " : ""}${k + 1}\n`)))
  }

  /** Enter keeps the indentation, Tab indents; after Escape Tab leaves. */
  function typed(event) {
    event.stopPropagation()
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) return event.preventDefault(), run()
    if (event.key === "Tab" && !event.shiftKey && !field.dataset.left) return event.preventDefault(), insert("    ")
    if (event.key === "Enter") {
      const before = field.value.slice(0, field.selectionStart).split("\n").at(-1), deep = before.match(/^ */)[0]
      event.preventDefault()
      insert(`\n${deep}${/:\s*$/.test(before) ? "    " : ""}`)
    }
    field.dataset.left = event.key === "Escape" ? "yes" : ""
  }

  function insert(text) {
    field.setRangeText(text, field.selectionStart, field.selectionEnd, "end")
    field.dispatchEvent(new Event("input"))
  }

  return { box: h("div", { class: "written" }, numbers, field), field, text: () => field.value, fill, renumber }
}

/** An editor in `el`: {source, task, weighs (bytes of Python), place (by which the text is kept)}. */
function write(el, data) {
  const root = frame(el, WRITE), memory = remembered(data.place)
  const keep = text => memory.set(text === data.source ? undefined : text)
  const code = editor(data.task.name, keep, judge)
  const says = h("div", { role: "status" }), out = h("div")
  const meter = h("progress", { max: data.weighs, value: 0, "aria-label": "loading Python", hidden: true })
  const run = h("button", { class: "primary", onclick: judge }, `Run in the browser (loads Python once, ${Math.round(data.weighs / 1e6)} MB)`)
  const again = h("button", { onclick: () => (code.fill(data.source), keep(data.source)) }, "Begin again")
  root.append(code.box, h("div", { class: "bar" }, run, again, meter), says, out)
  code.fill(memory.value ?? data.source)

  async function judge() {
    if (run.ariaBusy) return
    run.ariaBusy = true
    says.textContent = "Running"
    try {
      show(await python.run(code.text(), data.task, loaded => {
        meter.hidden = false
        meter.value = loaded
        says.textContent = loading(loaded, data.weighs)
      }))
    } catch (reason) {
      out.replaceChildren()
      says.replaceChildren(h("div", { class: "no" }, reason.message))
    }
    meter.hidden = true
    run.ariaBusy = null
    run.textContent = "Run (Ctrl + Enter)"
  }

  function show(result) {
    says.replaceChildren(h("pre", { class: `prose ${result.failure ? "no" : ""}` }, result.failure ? `✗ ${result.failure}` : `✓ ${result.words}`))
    code.renumber(result.line)
    const figure = h("div"), { plays, board } = result
    if (plays?.kind === "steps") steps(figure, { ...plays, plays: !result.failure }, { value: result.failure ? plays.says.length - 1 : 0 })
    else if (plays) orders(figure, plays)
    out.replaceChildren(result.printed ? h("pre", {}, result.printed) : "", figure, board ? table(data.task.board.columns, board) : "")
  }

  /** The board: what there is already, and "yours"; the best of each column in bold. */
  function table(columns, rows) {
    const best = columns.map((_, k) => Math.min(...rows.map(row => row[k])))
    const cell = (value, k) => h("td", {}, !k ? value : value === best[k] ? h("b", {}, shown(value, k)) : shown(value, k))
    const shown = (value, k) => (columns[k].endsWith("(s)") ? inTime(value) : String(+value.toFixed(3)))
    return h("div", { class: "sheet" }, h("table", {}, h("caption", {}, data.task.board.title),
      h("thead", {}, h("tr", {}, ...columns.map(name => h("th", { scope: "col" }, name.replace(" (s)", ""))))),
      h("tbody", {}, ...rows.map(row => h("tr", row[0] === "yours" ? { class: "yours" } : {}, ...row.map(cell))))))
  }
}

const WRITE = `
.collectives .written { display: flex; border: 1px solid #8889; border-radius: 6px; overflow: hidden }
.collectives .written:focus-within { outline: 2px solid var(--mark); outline-offset: 1px }
.collectives .written textarea:focus-visible { outline: none }
.collectives .written :is(pre, textarea) { font: 13px/1.5 ui-monospace, monospace; margin: 0; padding: 8px; overflow-y: hidden }
.collectives .written pre { text-align: right; flex: 0 0 auto; user-select: none }
.collectives .written pre span:not(.no) { opacity: .7 }
.collectives .written textarea { flex: 1 1 auto; min-width: 0; box-sizing: border-box; border: 0; resize: none; color: inherit; background: transparent;
  overflow-x: auto; white-space: pre }
.collectives progress { flex: 1 1 120px; max-width: 240px; accent-color: var(--mark) }
.collectives table { border-collapse: collapse; margin: 8px 0 } .collectives caption { text-align: left; font-weight: 600 }
.collectives :is(td, th) { padding: 2px 12px 2px 0; text-align: right } .collectives :is(td, th):first-child { text-align: left }
.collectives td:not(:first-child) { white-space: nowrap }
.collectives tr.yours { background: color-mix(in srgb, var(--mark) 18%, transparent) }`
