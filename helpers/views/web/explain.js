// A box on a page into which a reader pastes logs, or drops files: Python next to the page explains them, and nothing is sent.

const EXPLAIN_SECONDS = 120 // that a folder of dumps may take

/** Logs, in `el`: {weighs (bytes of Python), example (a log)}. */
function explain(el, data) {
  const root = frame(el, EXPLAIN)
  let files = []
  const field = h("textarea", { "aria-label": "A log", spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", rows: 12,
    placeholder: "Paste a log here, or drop files: logs, flight-recorder dumps, stacks, dmesg",
    onkeydown: event => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), judge()),
    onfocus: () => python.worker || python.begin(() => {}) })
  const chosen = h("input", { type: "file", multiple: true, "aria-label": "Files", onchange: () => take(chosen.files) })
  const list = h("span"), says = h("div", { role: "status" }), out = h("div")
  const meter = h("progress", { max: data.weighs, value: 0, "aria-label": "loading Python", hidden: true })
  const run = h("button", { class: "primary", onclick: judge }, `Explain (loads Python once, ${Math.round(data.weighs / 1e6)} MB)`)
  const example = h("button", { onclick: () => (clear(), (field.value = data.example)) }, "Put in an example")
  root.append(field, h("div", { class: "bar" }, chosen, list), h("div", { class: "bar" }, run, example, h("button", { onclick: clear }, "Clear"), meter), says, out)
  root.addEventListener("dragover", event => event.preventDefault())
  root.addEventListener("drop", event => (event.preventDefault(), take(event.dataTransfer.files)))

  function take(more) {
    files = [...files, ...more]
    list.textContent = files.length > 3 ? `${files.length} files` : files.map(file => file.name).join(", ")
  }

  function clear() {
    files = []
    field.value = chosen.value = list.textContent = says.textContent = ""
    out.replaceChildren()
  }

  async function judge() {
    if (run.ariaBusy) return
    if (!field.value.trim() && !files.length) return (says.textContent = "Paste a log first, or choose files.")
    run.ariaBusy = true
    out.replaceChildren()
    says.textContent = "Reading"
    try {
      const read = await Promise.all(files.map(async file => [file.name, new Uint8Array(await file.arrayBuffer())]))
      if (field.value.trim()) read.push(["pasted.log", new TextEncoder().encode(field.value)])
      const late = `After ${EXPLAIN_SECONDS} s it was still reading. On your machine: python -m collectives explain FILES`
      const result = await python.ask({ evidence: read }, loaded => {
        meter.hidden = false
        meter.value = loaded
        says.textContent = loading(loaded, data.weighs)
      }, EXPLAIN_SECONDS * 1000, late)
      says.textContent = result.failure ? "" : "The verdict:"
      for (const part of (result.failure ?? result.words).split("\n\n")) {
        out.append(/^ {2}/m.test(part) ? h("pre", { class: "verdict", tabindex: 0 }, part) : h("pre", { class: "prose verdict" }, part))
      }
    } catch (reason) {
      says.replaceChildren(h("div", { class: "no" }, reason.message))
    }
    meter.hidden = true
    run.ariaBusy = null
    run.textContent = "Explain (Ctrl + Enter)"
  }
}

const EXPLAIN = `
.collectives textarea { display: block; box-sizing: border-box; width: 100%; font: 13px/1.5 ui-monospace, monospace; padding: 8px;
  border: 1px solid #8889; border-radius: 6px; color: inherit; background: transparent; resize: vertical }
.collectives input[type=file] { max-width: 100% }
.collectives pre.verdict { overflow-x: auto; margin: 8px 0; font: 13px/1.5 ui-monospace, monospace }
.collectives pre.prose.verdict { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit }`
