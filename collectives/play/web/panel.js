// Controls, and what they lead to. `ask` promises the answer to a change: the kernel's, or one that was recorded.

function panel(el, data, _, ask) {
  const root = frame(el), at = Object.fromEntries(data.controls.map(control => [control.name, control.at]))
  const says = h("div", { "aria-live": "polite" }), notes = h("div", { class: "soft" }), seen = h("div")
  const moves = {}
  let asked = null, busy = false

  const sliders = h("div", { class: "sliders" })
  for (const control of data.controls) {
    const made = control.buttons ? buttons(control) : sliding(control)
    ;(control.buttons ? root : sliders).append(made)
  }
  const code = h("textarea", { readonly: true, rows: 11, "aria-label": "the code that runs, to copy", spellcheck: "false" })
  root.append(sliders, notes, says, seen, code)

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
    const line = h("label", { class: "slide" }, h("span", {}, control.label), input, value)
    moves[control.name] = {
      show: i => (input.value = i, value.textContent = control.options[i]),
      off: reason => (input.disabled = !!reason, line.title = reason ?? "", line.classList.toggle("off", !!reason)),
      most: last => (input.max = last),
    }
    return line
  }

  function change(name, i) {
    at[name] = i
    moves[name].show(i)
    asked = { ...at }
    if (!busy) next()
  }

  /** One question at a time, and then the latest: there is never a queue of runs that nobody waits for. */
  async function next() {
    busy = true
    while (asked) {
      const question = asked
      asked = null
      try {
        show(await ask(question))
      } catch (reason) {
        says.textContent = reason.message
      }
    }
    busy = false
  }

  function show(answer) {
    const off = answer.off ?? {}
    for (const { name } of data.controls) {
      moves[name].off(off[name])
      if (answer.most?.[name] !== undefined) moves[name].most(answer.most[name])
      if (answer.at?.[name] !== undefined && !asked) moves[name].show(at[name] = answer.at[name])
    }
    const reasons = data.controls.filter(control => off[control.name]).map(control => h("div", {}, `${control.label}: ${off[control.name]}`))
    notes.replaceChildren(...reasons)
    says.textContent = answer.words ?? ""
    code.value = answer.code ?? ""
    code.hidden = !answer.code
    const text = answer.failure ?? answer.text
    seen.replaceChildren(...[
      answer.picture && picture(answer.picture),
      answer.grid && h("div", { class: "sheet" }, beforeAndAfter(answer.grid, said => (says.textContent = said))),
      text && h("pre", { class: answer.prose || answer.failure ? "prose" : null }, text),
    ].filter(Boolean))
  }

  show(data.now)
}
