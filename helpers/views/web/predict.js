// A prediction: what each rank brings, fields to fill in, and two stages of marking. First which are wrong and why;
// what they really are only when all are right, or on "Show me".
// In JupyterLab a run marks (`ask` sends the answer to the kernel); on a page the recording does, from its encoded key.

/** Shows a question in `el`: {ask, title, rows, before, options}; `ask({filled, show})` promises what came of it. */
function predict(el, data, at, ask) {
  const root = frame(el, PREDICT), said = h("div", { role: "status" }), out = h("div")
  const fields = [], answers = [], kept = at.value?.filled ?? []
  let tries = 0, chosen = kept[0]?.[0] ?? ""
  const puzzle = data.kind === "puzzle" // its options are lines of code, and each was run
  root.append(h("div", {}, h("b", {}, puzzle ? data.title : "Predict. "), puzzle ? "" : data.title))

  const choices = (data.options ?? []).map(option => h("button", { "aria-pressed": option === chosen, onclick: () => {
    chosen = option
    for (const button of choices) button.setAttribute("aria-pressed", button.textContent === option)
  } }, option))
  if (data.ask === "choice") root.append(h("div", { class: `bar choices ${data.kind}`, role: "group", "aria-label": data.title }, ...choices))
  else for (const [i, row] of data.rows.entries()) root.append(line(row, i))
  const run = h("button", { class: "primary run", onclick: () => mark(false) }, data.live ? "Run" : "Check")
  const show = h("button", { class: "show", hidden: true, onclick: () => mark(true) }, "Show me")
  root.append(h("div", { class: "bar" }, run, show))
  if (data.ask === "grid") {
    root.append(h("details", { class: "soft" }, h("summary", {}, "Tab leads to the next field, Enter marks. More:"),
      "A whole row may go into its first field. ", h("b", {}, "?"), " means undefined, ", h("b", {}, "never"),
      " that the call never ends; nothing at all: that nothing is there."))
  }
  root.append(said, out)
  ;(choices[0] ?? fields.flat()[0])?.setAttribute("data-first", "")

  function line(row, i) {
    const held = row.shown.map(([text, rank]) => {
      const tint = rank == null ? null : colour(rank)
      const style = `background: ${tint}; border-color: ${tint}; color: ${tint && inkOn(tint)}; box-shadow: 0 0 0 1px ${tint && edge(tint)}`
      return h("span", tint ? { class: "cell", style } : { class: "cell empty" }, text)
    })
    const mine = Array.from({ length: row.asked ? row.cells : 0 }, (_, k) => {
      const name = data.ask === "grid" ? `rank ${row.rank}, number ${k + 1}` : "your answer"
      const field = h("input", { type: "text", placeholder: "?", "aria-label": name, value: kept[i]?.[k], autocomplete: "off",
        spellcheck: "false", style: data.ask === "grid" ? null : "width: 220px", onkeydown: event => {
          if (event.key !== "Enter" || event.shiftKey) return
          event.preventDefault()
          mark(false)
        } })
      return field
    })
    fields.push(mine)
    answers.push(mine.map(() => h("span")))
    const who = row.rank == null ? null
      : h("span", { class: "who", style: `border-color: ${colour(row.rank)}; box-shadow: 1px 0 ${edge(colour(row.rank))}; font-weight: ${row.root ? 700 : 400}` }, `${row.root ? "★ " : ""}rank ${row.rank}`)
    const before = data.before ? [...held, mine.length ? "→" : null] : []
    return h("div", { class: data.ask === "grid" ? "row even" : "row" }, who, ...before, ...mine.map((field, k) => h("span", { class: "answer" }, field, answers[i][k])))
  }

  const filled = () => (data.ask === "choice" ? [[chosen]]
    : data.rows.map((row, i) => (row.asked ? fields[i].map(field => field.value.trim()) : Array(row.cells).fill(""))))

  async function mark(showing) {
    if (run.ariaBusy) return
    const given = filled()
    if (!showing && !given.flat().some(Boolean)) {
      said.textContent = `Nothing is ${data.ask === "choice" ? "chosen" : "filled in"} yet. A guess is enough; what you were wrong about, you remember.`
      show.hidden = false
      return
    }
    at.set?.({ filled: given })
    tries += 1
    run.ariaBusy = true // a disabled button would lose the focus
    if (data.live) run.textContent = "Running"
    try {
      const result = await ask({ filled: given, show: showing })
      at.set?.({ filled: given, result })
      if (showing) run.focus() // which is lost with the button for it
      shown(result)
    } catch (reason) {
      said.textContent = reason.message
    } finally {
      run.ariaBusy = null
      run.textContent = data.live ? "Run again" : "Check again"
    }
  }

  function shown(result) {
    if (result.failure) return out.replaceChildren(h("pre", { class: "prose" }, result.failure))
    for (const [i, marks] of result.marks.entries()) {
      for (const [k, right] of marks.entries()) {
        const want = result.wants?.[i]?.[k], field = fields[i]?.[k]
        if (!field) continue
        field.ariaInvalid = right === false
        field.classList.toggle("right", !!right)
        const sign = right ? "✓" : right === false ? "✗" : ""
        answers[i][k].className = right ? "yes" : right === false ? "no" : "" // what was left blank is not wrong
        answers[i][k].textContent = !right && want !== undefined ? `${sign} ${want}` : sign
      }
    }
    const why = result.reasons.map(reason => h("div", {}, reason))
    const hint = why.length && data.ask === "grid" && tries === 1 && !result.wants // it may give the answer away
    const lines = [h("b", {}, result.summary), ...(hint ? [h("details", {}, h("summary", {}, "A hint"), ...why)] : why)]
    if (result.right && data.ask === "choice") lines.push(h("div", { class: "yes" }, `✓ ${chosen}`))
    else if (result.wants && data.ask === "choice") lines.push(h("div", {}, h("span", { class: "yes" }, "✓ "), result.wants[0][0]))
    said.replaceChildren(...lines)
    run.classList.toggle("primary", !result.right)
    show.hidden = !!result.wants
    out.replaceChildren(...(result.after ? outcome(result.after) : []))
  }

  const outcome = after => {
    const text = h("pre", { class: after.prose ? "prose" : null }, after.text)
    return [after.picture ? picture(after.picture) : null,
      after.prose || !after.picture ? text : h("details", {}, h("summary", {}, "as text"), text)].filter(Boolean)
  }

  if (at.value?.result) shown(at.value.result)
}

const PREDICT = `
.collectives .row.even { min-height: 32px; margin-bottom: 21px }
.collectives .choices.puzzle { flex-direction: column; align-items: stretch }
.collectives .choices.puzzle button { font: 13px/1.5 ui-monospace, monospace; text-align: left; overflow-wrap: anywhere }`
