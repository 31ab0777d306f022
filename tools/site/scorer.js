// The ranking of what a search finds: by the weights that tools/site/ranking.py gave to a page's words. Sphinx puts this file before its own.

const SYNONYMS = {
  moe: "experts", oom: "memory activations", "out of memory": "memory activations", fsdp: "fsdp sharded", fsdp2: "fsdp sharded", "process group": "new_group", "process groups": "new_group", zero: "zero sharded", zero3: "zero sharded", "zero-3": "zero sharded", "zero 3": "zero sharded", "ring all_reduce": "ring algorithms",
  freeze: "hang", freezes: "hang", frozen: "hang", hanging: "hang", deadlocked: "deadlock", nccl_timeout: "nccl timeout",
  dp: "data parallel", tp: "tensor parallel", pp: "pipeline parallel", ep: "experts", cp: "long context", "context parallel": "long context", sp: "tensor sequence parallel", "sequence parallel": "tensor sequence parallel",
  throughput: "tokens", cheatsheet: "cheat sheet", moes: "experts",
}

const ALONE = { all_reduce: "all_reduce cheat sheet" } // it's on every second page

const TITLED = 900 // what a page's title is worth, next to the weights: shared by its words

/** A query in the course's words: other names of things, and the spellings of NCCL and MPI (allreduce -> all_reduce). */
function inOurWords(query) {
  const spelled = query.trim().replace(/\b(all|reduce)[-_ ]?(reduce|gather|scatter|to[-_ ]?all)\b/gi, (_, first, then) =>
    `${first}_${then.replace(/to[-_ ]?all/i, "to_all")}`.toLowerCase())
  const whole = ALONE[spelled.toLowerCase()] ?? SYNONYMS[spelled.toLowerCase()]
  return whole ?? spelled.split(/\s+/).map(word => SYNONYMS[word.toLowerCase()] ?? word).join(" ")
}

var Scorer = (() => {
  const asked = new URLSearchParams(location.search).get("q") ?? "", query = inOurWords(asked)
  if (query !== asked.trim()) history.replaceState(null, "", `?${new URLSearchParams({ q: query })}`)
  let words = null
  return {
    score: ([docname, title, anchor, descr, score]) => {
      words ??= splitQuery(query.toLowerCase()).map(word => new Stemmer().stemWord(word))
      const known = WEIGHTS[docname] ?? {}
      const named = splitQuery(title.toLowerCase()).map(word => new Stemmer().stemWord(word))
      const worth = word => (known[word] ?? 0) + (named.includes(word) ? TITLED / Math.max(3, named.length) : 0)
      return words.reduce((sum, word) => sum + worth(word), 0) + score // which decides between equals alone
    },
    objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
    title: 15, partialTitle: 7, term: 5, partialTerm: 2,
  }
})()

addEventListener("DOMContentLoaded", () => {
  const whole = Search.htmlToText
  Search.htmlToText = (page, anchor) => whole(page.replace(/<div class="plays[^]*?<\/div>/, ""), anchor) // no hit is in the notice on every page
})
