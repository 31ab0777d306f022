// Controls, and what they lead to. `ask` promises the answer to a change: the kernel's, or one that was recorded. It is told
// how to say what is going on until then.

const SOON = 150 // ms: an answer that comes sooner needs no word that it is awaited
const WIDE = 440 // pixels: what is no picture
const PANEL = `
.collectives .slide small { flex: 1 1 0 } .collectives .slide small:empty { display: none }
.collectives .off { opacity: .7 } .collectives .off output { display: none }
.collectives .off input { position: absolute; clip-path: inset(50%) }
.collectives .beside { display: flex; flex-wrap: wrap; gap: 4px 20px; align-items: flex-start }
.collectives .controls { flex: 1 1 290px } .collectives .seen { flex: 100 1 0; min-width: 0; max-width: 100% }
.collectives .seen.stale { opacity: .35 }
.collectives[aria-busy] .seen { opacity: .6; transition: opacity .1s .15s }
.collectives .bars { display: grid; grid-template-columns: max-content minmax(0, 1fr) max-content; gap: 2px 10px; align-items: center; margin-top: 6px }
.collectives .bars > * { grid-column: 2 } .collectives .bars > .name { grid-column: 1; text-align: right }
.collectives .bars > .said { grid-column: 3; font-size: 12px } .collectives .bars > .legend { font-size: 12px; margin-bottom: 10px }
.collectives .track { position: relative; height: 22px } .collectives .band { height: 10px }
.collectives .track > i { position: absolute; box-sizing: border-box; top: 0; bottom: 0; border: 1px solid var(--edge) }
.collectives .track > .mark { border: 0; border-left: 2px solid; top: -3px; bottom: -3px }
.collectives .swatch { display: inline-block; width: 10px; height: 10px; margin: 0 5px 0 0; border: 1px solid #8889 }
.collectives .legend > span { display: inline-block; margin-right: 14px }
@media (max-width: 600px) { .collectives .bars > .said { grid-column: 2 } .collectives .bars > .name { align-self: start } }
.collectives textarea:not([hidden]) { display: block; box-sizing: border-box; width: 100%; font: 12px/1.35 var(--jp-code-font-family, monospace);
  color: inherit; background: transparent; border: 1px solid #8889; white-space: pre }`

/** address: what keeps the settings in a page's address, if it has one. */
function panel(el, data, { address }, ask) {
  const root = frame(el, PANEL), at = Object.fromEntries(data.controls.map(control => [control.name, control.at]))
  const says = h("div", { "aria-live": "polite" }), seen = h("div", { class: "seen" })
  const moves = {}
  let asked = null, busy = false

  const sliders = h("div", { class: "sliders" })
  for (const control of data.controls) {
    const made = control.buttons ? buttons(control) : sliding(control)
    ;(control.buttons ? root : sliders).append(made)
  }
  const code = h("textarea", { readonly: true, rows: 11, "aria-label": "the code that runs, to copy", spellcheck: "false" })
  const coded = h("details", {}, h("summary", {}, "the code that runs, to copy"), code)
  root.append(h("div", { class: "beside" }, h("div", { class: "controls" }, sliders, says), seen), coded)

  function buttons(control) {
    const group = h("div", { class: "bar", role: "group", "aria-label": control.label })
    const all = control.options.map((option, i) => h("button", { onclick: () => change(control.name, i) }, option))
    group.append(...all)
    moves[control.name] = { show: i => all.forEach((button, k) => button.setAttribute("aria-pressed", k === i)), off: () => {}, most: () => {} }
    moves[control.name].show(control.at)
    return group
  }

  function sliding(control) {
    const value = h("output", {}, control.options[control.at])
    const { input } = slider(control.label, control.options.length - 1, control.at, i => change(control.name, i), i => control.options[i])
    const why = h("small", {}), line = h("label", { class: "slide" }, h("span", {}, control.label), input, value, why)
    moves[control.name] = {
      show: i => (input.value = i, value.textContent = control.options[i]),
      off: reason => (input.disabled = !!reason, why.textContent = reason ?? "", line.classList.toggle("off", !!reason)),
      most: last => (input.max = last),
    }
    return line
  }

  function change(name, i) {
    at[name] = i
    moves[name].show(i)
    address?.set({ ...at })
    asked = { ...at }
    if (!busy) next()
  }

  /** One question at a time, and then the latest: there is never a queue of runs that nobody waits for. */
  async function next() {
    busy = true
    const late = setTimeout(() => (says.textContent = "Running ..."), SOON)
    root.setAttribute("aria-busy", true) // what is shown is not yet what the controls say
    while (asked) {
      const question = asked
      asked = null
      try {
        show(await ask(question, said => (clearTimeout(late), says.textContent = said)))
      } catch (reason) {
        says.textContent = reason.message
      }
    }
    busy = false
    clearTimeout(late)
    root.removeAttribute("aria-busy")
  }

  function show(answer) {
    const off = answer.off ?? {}
    for (const { name } of data.controls) {
      moves[name].off(off[name])
      if (answer.most?.[name] !== undefined) moves[name].most(answer.most[name])
      if (answer.at?.[name] !== undefined && !asked) moves[name].show(at[name] = answer.at[name])
    }
    says.textContent = answer.words ?? ""
    seen.classList.toggle("stale", !!answer.stale)
    code.value = answer.code ?? ""
    coded.hidden = !answer.code
    const text = answer.failure ?? answer.text
    // Beside the controls if it fits there: else below them, as wide as it is.
    seen.style.flexBasis = `${answer.picture?.width ?? (answer.bars ? 2 * WIDE : WIDE)}px`
    seen.replaceChildren(...[
      answer.picture && picture(answer.picture),
      answer.bars && bars(answer.bars),
      answer.grid && h("div", { class: "sheet" }, beforeAndAfter(answer.grid, said => (says.textContent = said))),
      text && (answer.prose || answer.failure ? h("pre", { class: "prose" }, text) : h("details", {}, h("summary", {}, "as text"), h("pre", {}, text))),
    ].filter(Boolean))
  }

  show(data.now)
  const chosen = data.controls.filter(({ name, options }) => address?.value?.[name] < options.length)
  for (const { name } of chosen) moves[name].show(at[name] = address.value[name])
  if (chosen.length) change(chosen[0].name, at[chosen[0].name])
}

/** Bars in their parts, as collectives/planner/bars.py has them: lengths are shares of the full width. */
function bars({ title, subtitle, rows }) {
  const percent = share => `${100 * share}%`
  const piece = (from, wide, more) => h("i", { ...more, style: `left: ${percent(from)}; width: ${percent(wide)}; ${more.style ?? ""}` })
  const made = h("div", { class: "bars" })
  for (const row of rows) {
    const track = h("div", { class: "track" })
    let from = 0
    for (const [name, share, tint] of row.parts) {
      track.append(piece(from, share, { title: name, style: `background: ${tint}; --edge: ${edge(tint)}` }))
      from += share
    }
    if (row.spare) track.append(piece(from, row.spare, { title: "to spare", style: "background: #88888844; top: 6px; bottom: 6px" }))
    if (row.limit) track.append(piece(row.limit, 0, { class: "mark" }))
    const said = h("span", { class: "said" }, row.words, row.verdict ? h("b", {}, ` ${row.verdict}`) : null)
    const legend = row.legend.map(([tint, words]) => h("span", {}, h("span", { class: "swatch", style: `background: ${tint}` }), words))
    made.append(h("span", { class: "name" }, row.name), track, said)
    for (const [kind, [low, median, high], words] of row.bands ?? []) {
      const shaded = piece(low, high - low, { style: "background: #7a9a6a66; border: 0" }), middle = piece(median, 0, { class: "mark" })
      made.append(h("small", { class: "name" }, kind), h("div", { class: "track band" }, shaded, middle), h("span", { class: "said" }, words))
    }
    made.append(h("div", { class: "legend" }, ...legend))
  }
  return h("div", {}, h("b", {}, title), ` ${subtitle}`, made)
}
