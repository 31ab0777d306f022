// A prediction marked from a recording: the same rules as helpers/views/predict/answers.py ----------------------

const MEANS = { undefined: ["?", "undefined", "undef"], nothing: ["-", "none", "nothing", "∅"], never: ["never", "hangs", "hang", "stuck", "waits"] }
const plain = said => [...said].map(c => ("₀₁₂₃₄₅₆₇₈₉".includes(c) ? "₀₁₂₃₄₅₆₇₈₉".indexOf(c) : c)).join("")
  .replace(/[_ ()'"]/g, "").toLowerCase().replace(/^(sumof|sum|sigma|s(?=[a-z]$))/, "σ")

function read(said) {
  const low = said.trim().toLowerCase().replace("−", "-")
  for (const [kind, names] of Object.entries(MEANS)) if (names.includes(low)) return { kind }
  if (!low) return { kind: "blank" }
  const special = { true: 1, false: 0, inf: Infinity, "+inf": Infinity, "-inf": -Infinity, infinity: Infinity, nan: NaN }
  if (low in special) return { kind: "number", value: special[low] }
  const part = low.match(/^(-?\d+)\/(\d*[1-9]\d*)$/)
  if (part) return { kind: "number", value: part[1] / part[2] }
  return Number.isNaN(Number(low)) ? { kind: "word", value: plain(low) } : { kind: "number", value: Number(low) }
}

const number = value => (typeof value === "string" ? read(value).value : value)

function near(a, b) {
  if (a === b || (Number.isNaN(a) && Number.isNaN(b))) return true
  if (!Number.isFinite(b)) return false
  if (Number.isInteger(b)) return Math.abs(a) >= 1e6 && a.toPrecision(4) === b.toPrecision(4)
  return Math.abs(a - b) <= 5e-3 * Math.abs(b)
}

/** Whether a number is wanted, and this isn't one: a slip of the pen, and not a wrong answer. */
const isUnread = (answer, want) => answer.kind === "word" && want.kind === "number"

/** A sentence about answers that aren't numbers, where numbers are wanted. */
const unreadWords = texts => texts.length === 0 ? ""
  : ` '${texts[0]}' isn't a number.${texts.some(text => text.includes(",")) ? " Fractions have a point: 2.5." : ""}`

function fits(answer, want) {
  if (answer.kind !== want.kind) return answer.kind === "blank" && want.kind === "nothing"
  if (want.kind === "word") return answer.value === want.value
  return want.kind !== "number" || near(answer.value, number(want.value))
}

const decoded = key => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(key), c => c.charCodeAt(0))))

/** Marks from the key of a recording, {wants, reasons, after}, as marking.py marks from a run. */
function markerOf(data) {
  let key = null
  return async ({ filled, show }) => {
    key ??= decoded(data.key)
    const tried = filled.flat().some(Boolean)
    const judge = { choice: chosen, open, grid }[data.ask]
    const { marks, reasons, unread = [] } = judge(filled)
    const all = marks.flat().filter(mark => mark !== undefined), right = all.filter(Boolean).length, done = right === all.length
    const answered = tried && all.some(mark => mark !== null), some = unreadWords(unread)
    const summary = !answered ? `Nothing was predicted.${some}` : all.length === 1 ? (done ? "Right." : "Not so.")
      : done ? `All ${right} right.` : `${right} of ${all.length} right.${some}`
    const shown = done || show ? { wants: key.wants.map(row => row.map(want => want.text)) } : {}
    const after = key.outcomes ? key.outcomes[show ? key.wants[0][0].text : filled[0][0]] : shown.wants && key.after
    const rest = { ...shown, ...(after ? { after } : {}) }
    return { marks, summary, reasons, right: done, ...rest }

    function chosen([[picked]]) {
      const good = picked ? picked === key.wants[0][0].text : null, why = key.reasons[picked]
      return { marks: [[good]], reasons: good === false && why ? [why] : [] }
    }

    function open([[written]]) {
      const wants = key.parts, given = written.split(/[,;\s]+|\band\b|\branks?\b/).filter(Boolean).map(read)
      if (wants.some(want => want.kind === "word")) return { marks: [[wants.some(want => fits(read(written), want))]], reasons: [] }
      const some = given.filter(answer => answer.kind !== "nothing"), real = wants.filter(want => want.kind !== "nothing")
      if (real.length && given.length && given.every(answer => isUnread(answer, real[0]))) return { marks: [[null]], reasons: [], unread: [written] }
      return { marks: [[given.length ? some.length === real.length && some.every((answer, i) => fits(answer, wants[i])) : null]], reasons: [] }
    }

    function grid(rows) {
      const wrong = [], unread = [] // of each wrong cell: its rank, and the places of the stories that explain it
      const marks = rows.map((row, i) => (data.rows[i].asked ? spread(row) : []).map((text, k) => {
        const want = key.wants[i][k] ?? { kind: "nothing" }, answer = read(text)
        if (k && answer.kind === "blank" && want.kind === "nothing") return undefined // no merit in that
        const blank = answer.kind === "blank" && !(want.kind === "nothing" && rows.flat().some(Boolean))
        if (isUnread(answer, want)) unread.push(text.trim())
        const good = blank || isUnread(answer, want) ? null : fits(answer, want) // what was left blank is not wrong
        const found = key.reasons[`${i} ${k}`] ?? {}, stories = found[answer.kind === "number" ? String(answer.value) : answer.kind] ?? found[""]
        if (good === false && answer.kind !== "blank" && stories != null) wrong.push([data.rows[i].rank, [stories].flat()]) // a cell of older notebooks has one
        return good
      }))
      const why = new Map(), explains = {} // of a cell's stories the one is told whose kind explains the most cells
      for (const [, stories] of wrong) {
        for (const kind of new Set(stories.map(at => key.kinds?.[at]))) explains[kind] = (explains[kind] ?? 0) + 1
      }
      for (const [rank, stories] of wrong) {
        const told = stories.reduce((best, at) => (explains[key.kinds?.[at]] > explains[key.kinds?.[best]] ? at : best))
        const ranks = why.get(told) ?? []
        why.set(told, ranks.includes(rank) ? ranks : [...ranks, rank])
      }
      return { marks, unread, reasons: [...why].map(([at, ranks]) => `${listed(ranks)}: ${key.why[at]}.`) }
    }
  }
}

/** A whole row typed into its first field goes to all of its fields. */
function spread(row) {
  const parts = row[0].split(/\s+/)
  return parts.length === row.length && !row.slice(1).some(Boolean) ? parts : row
}
