// What all figures share: colours, elements, the frame, a slider that the keyboard moves, words that are announced.
// collectives/figures/web/__init__.py joins this file and a figure's to one ES module: there is nothing to build or to load.

const PALETTE = ["#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#6e131b", "#ef4989", "#337856", "#b1c7f3"]
const DONE = "#26292e" // a cell that combines every rank
const colour = rank => (rank == null ? "#51575e" : PALETTE[rank % PALETTE.length]) // null: several could be the source

/** The relative luminance of a colour (WCAG). */
function luminance(fill) {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(fill.slice(i, i + 2), 16) / 255)
    .map(c => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

/** Black or white, whichever can be read better on this fill. */
function inkOn(fill) {
  const light = luminance(fill)
  return 1.05 / (light + 0.05) > (light + 0.05) / 0.05 ? "#ffffff" : "#000000"
}

/** What a shape of this colour is edged with: a colour with less than 3:1 to a dark page, on such a page. */
const edge = fill => (luminance(fill) < 0.117 ? "var(--edge)" : "transparent")

/** An element; in `attributes`, onclick and the like are listeners, and false and null are left out. */
function h(tag, attributes = {}, ...children) {
  const svg = /^(svg|g|rect|line|path|circle|text|title|tspan)$/.test(tag)
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value)
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value)
  }
  made.append(...children.filter(child => child != null))
  return made
}

const words = (x, y, said, more = {}) => h("text", { x, y, "dominant-baseline": "central", fill: "currentColor", ...more }, said)
const listed = ranks => (ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks.slice(0, -1).join(", ")} and ${ranks.at(-1)}`)
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches

const DARK = "--mark: #7db8f5; --yes: #5cc26b; --no: #ff7a61; --edge: #c9ced4"
const STYLE = `
.collectives { --mark: #1769c2; --yes: #2e8b3d; --no: #d9381e; --edge: transparent;
  font: 14px/1.45 system-ui, sans-serif; max-width: 100%; margin: 6px 0 10px; color: var(--jp-content-font-color1, inherit) }
[data-jp-theme-light=false] .collectives, body[data-theme=dark] .collectives { ${DARK} }
@media (prefers-color-scheme: dark) { body[data-theme=auto] .collectives { ${DARK} } }
.jupyter-widgets-disconnected:has(.collectives)::before { content: none }
.collectives .bar { display: flex; flex-wrap: wrap; gap: 6px 8px; align-items: center; margin: 6px 0 }
.collectives button { font: inherit; min-height: 32px; padding: 3px 10px; color: inherit; background: transparent;
  border: 1px solid #8889; border-radius: 6px; cursor: pointer }
.collectives button.primary, .collectives button[aria-pressed=true] { border: 2px solid var(--mark); font-weight: 600 }
.collectives button[aria-busy] { opacity: .7 }
.collectives :is(button, input, summary, textarea, [tabindex]):focus-visible { outline: 2px solid var(--mark); outline-offset: 1px }
.collectives input { font: inherit; color: inherit; accent-color: var(--mark) }
.collectives input[type=range] { flex: 1 1 130px; max-width: 420px; min-width: 90px }
.collectives input[type=text] { box-sizing: border-box; width: 68px; min-height: 30px; text-align: center; background: transparent;
  border: 1px solid #8889; border-radius: 4px }
.collectives input[aria-invalid=true] { border: 2px solid var(--no) }
.collectives input.right { border: 2px solid var(--yes) }
.collectives .sheet { overflow-x: auto; max-width: 100% }
.collectives svg { display: block; font: 13px system-ui, sans-serif; max-width: none; height: auto }
.collectives .picture { margin: 6px 0; border-radius: 6px; overflow: hidden }
.collectives img { display: block; max-width: 100%; height: auto }
[data-jp-theme-light=false] .collectives img, .vscode-dark .collectives img { color-scheme: dark }
.collectives pre { margin: 6px 0; overflow-x: auto; font-size: 12px; line-height: 1.35; background: none; color: inherit; white-space: pre }
.collectives pre.prose { white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal }
.collectives .soft { opacity: .78; font-size: 13px; min-height: 1.45em }
.collectives .roomy { display: grid } .collectives .roomy > *, .collectives .roomy::after { grid-area: 1 / 1; min-width: 0; overflow-wrap: anywhere }
.collectives .roomy::after { content: attr(data-longest); visibility: hidden }
.collectives .yes { color: var(--yes) } .collectives .no { color: var(--no) }
.collectives .row { display: flex; flex-wrap: wrap; align-items: center; gap: 4px; margin: 4px 0 }
.collectives .who { flex: 0 0 70px; white-space: nowrap; text-align: right; padding-right: 6px; border-right: 4px solid }
.collectives .cell { box-sizing: border-box; min-width: 32px; min-height: 26px; line-height: 24px; padding: 0 5px; text-align: center;
  border: 1px solid; border-radius: 3px; font-size: 13px }
.collectives .cell.empty { border: 1px dashed #8889 }
.collectives .row:has(.answer) { row-gap: 21px; margin-bottom: 21px }
.collectives .answer { display: inline-flex; flex-direction: column; align-items: center; font-size: 12px; margin-bottom: -17px }
.collectives .answer span:empty::before { content: "\\a0" }
.collectives .sliders { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 0 20px }
.collectives .slide { display: flex; gap: 8px; align-items: center; min-height: 30px }
.collectives .slide span { flex: 0 0 96px; text-align: right } .collectives .slide output { flex: 0 0 60px }
.collectives .moves { transition: transform .6s cubic-bezier(.4, 0, .2, 1), opacity .25s .6s }
.collectives .fades.there { opacity: 0 }
.collectives .comes { opacity: 0 } .collectives .comes.there { opacity: 1; transition: opacity .1s .55s }
.collectives .goes.there { opacity: 0; transition: opacity .1s .55s }
@media (max-width: 480px) { .collectives input[type=text] { width: 54px } .collectives .who { flex-basis: 58px } }
@media (prefers-reduced-motion: reduce) { .collectives :is(.moves, .comes.there, .goes.there) { transition: none } }`

const SUPPRESSED = "data-lm-suppress-shortcuts" // JupyterLab looks for it when a key is pressed
const EDITS = "acvxyz" // with Ctrl, what these do to a text field is meant

// Shortcuts with Ctrl or Meta are JupyterLab's, as Ctrl+S is; all other keys are the figure's. On its way to JupyterLab, which listens
// on the document, a key passes the window first.
addEventListener("keydown", event => {
  const figure = event.target.closest?.(".collectives"), types = event.target.matches?.("input[type=text], textarea")
  const passes = (event.ctrlKey || event.metaKey) && !(types && EDITS.includes(event.key.toLowerCase()))
  if (figure) passes ? figure.removeAttribute(SUPPRESSED) : figure.setAttribute(SUPPRESSED, "true")
}, true)

/** The frame of a figure: its style, and what it adds to that. Escape leads back to its cell, and Shift+Enter to the next one. */
function frame(el, own = "") {
  const made = h("div", { class: "collectives", [SUPPRESSED]: "true" }, h("style", {}, STYLE + own))
  made.addEventListener("keydown", event => {
    const cell = made.closest(".jp-Cell"), plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.defaultPrevented
    const back = event.key === "Escape", on = event.key === "Enter" && event.shiftKey
    if (!cell || !plain || !(back || on)) return
    event.preventDefault()
    event.stopPropagation()
    ;(on ? nextCell(cell) ?? cell : cell).focus()
  })
  el.append(made)
  return made
}

/** The cell below another one, which may be folded away between other elements. */
function nextCell(cell) {
  const all = [...(cell.closest(".jp-Notebook")?.querySelectorAll(".jp-Cell") ?? [])]
  return all[all.indexOf(cell) + 1]
}

/** A slider. JupyterLab prevents what arrow keys do to one, so they are dealt with here. */
function slider(name, most, value, moved, said = String) {
  const input = h("input", { type: "range", min: 0, max: most, value, "aria-label": name })
  const go = to => {
    input.value = Math.max(0, Math.min(input.max, to))
    input.setAttribute("aria-valuetext", said(+input.value))
    moved(+input.value)
  }
  input.addEventListener("input", () => go(+input.value))
  input.addEventListener("keydown", event => {
    const here = +input.value
    const to = { ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1, Home: 0, End: +input.max }[event.key]
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    event.stopPropagation()
    go(to)
  })
  input.setAttribute("aria-valuetext", said(value))
  return { input, go }
}

/** A drawing of so many pixels: larger where there is room, never smaller, for its letters must be read. */
function drawing(wide, high, more = {}) {
  const style = `min-width: ${wide}px; width: min(100%, ${1.3 * wide}px)`
  return h("svg", { viewBox: `0 0 ${wide} ${high}`, style, role: "img", tabindex: 0, ...more })
}

/** A picture that came with its words: its file, or on the website its files, one below the other. */
function picture(files) {
  return h("div", { class: "picture" }, ...[files].flat().map(file => h("img", { ...file, loading: "lazy" })))
}
