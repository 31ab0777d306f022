// Python in a browser, beside the page. What a reader wrote is judged by the library itself, collectives/figures/written.py, and
// what a division leads to is planned by it, collectives/figures/planning.py. A question is {source, task}, {planned: [...]},
// {cell: {...}}, a notebook's cell that helpers/exercise/page.py runs on pretended ranks ({cell: null} loads it), or {evidence: [[name, bytes], ...]}, files
// that collectives/watch/explain explains.

import { loadPyodide } from "./pyodide.mjs"

const fetched = self.fetch
let loaded = 0

/** fetch, whose bytes are counted as they come. */
self.fetch = async (...what) => {
  const answer = await fetched(...what)
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status} ${answer.statusText}`)
  const counted = new TransformStream({ transform(part, way) {
    loaded += part.length
    postMessage({ loaded })
    way.enqueue(part)
  } })
  return new Response(answer.body.pipeThrough(counted), { headers: answer.headers })
}

const START = `
import json, sys
def answer(question):
    match json.loads(question):
        case {"source": source, "task": task}:
            from collectives.figures.written import evaluate
            return json.dumps(evaluate(source, task))
        case {"cell": asked}:
            if "torch" not in sys.modules:
                from collectives.draw.without_matplotlib import install
                install()
                from collectives.pretend.torch_module import install
                install()
            from helpers.exercise.page import evaluate
            return json.dumps(asked and evaluate(asked))
        case {"planned": given}:
            from collectives.figures.planning import plan_data
            return json.dumps(plan_data(*given))
        case {"evidence": folder}:
            from collectives.watch.explain.command import explain
            try:
                return json.dumps({"words": explain(folder).replace(f"{folder}/", "")})
            except (OSError, ValueError) as error:
                return json.dumps({"failure": str(error).replace(folder, "what you gave")})
answer
`

let asked = 0

/** The folder, new, into which these files are put; a name that is there twice gets a folder of its own. */
function put(files, evidence) {
  const folder = `/evidence${asked++}`
  files.mkdir(folder)
  for (const [name, bytes] of evidence) {
    let place = folder
    for (let n = 2; files.analyzePath(`${place}/${name}`).exists; n++) place = `${folder}/${n}`
    files.mkdirTree(place)
    files.writeFile(`${place}/${name}`, bytes)
  }
  return folder
}

try {
  const library = fetch(new URL("collectives.zip", import.meta.url)).then(answer => answer.arrayBuffer())
  const python = await loadPyodide()
  python.unpackArchive(await library, "zip")
  const answer = python.runPython(START)
  self.onmessage = ({ data }) => postMessage({ result: JSON.parse(answer(JSON.stringify(data.evidence ? { evidence: put(python.FS, data.evidence) } : data))) })
  postMessage({ ready: true })
} catch (error) {
  postMessage({ failure: String(error.message ?? error) })
}
