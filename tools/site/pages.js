// On every page: on a phone, a picture's before stands above its after; what is wider than the page can be scrolled by keyboard, and says so;
// a screen reader gets the names and levels that the theme leaves out; the lists of pages and headings show where one is; and a search
// leads to the section that it is about.

let SOUGHT = [] // the words of the search that led here: Sphinx keeps them until the page is there
try { SOUGHT = localStorage.getItem("sphinx_highlight_terms")?.toLowerCase().split(" ").filter(Boolean) ?? [] } catch {}

addEventListener("DOMContentLoaded", () => {
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) heading.setAttribute("aria-level", "2")
  for (const [part, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "This page"]]) document.querySelector(part)?.setAttribute("aria-label", name)
  for (const fold of document.querySelectorAll("summary[aria-label='Toggle hidden content']")) fold.removeAttribute("aria-label") // it has words
  for (const head of document.querySelectorAll("th")) if (!head.textContent.trim()) head.replaceWith(document.createElement("td"))
  if (!document.querySelector("h1")) {
    const title = document.createElement("h1")
    title.textContent = document.title.split(" - ")[0]
    document.querySelector("article")?.prepend(title)
  }
  document.querySelector("article")?.append(...document.querySelectorAll(".back-to-top")) // all that is seen is in a landmark
  watch(document)
  const changed = list => new Set(list.map(({ target }) => target)).forEach(watch)
  new MutationObserver(changed).observe(document.body, { childList: true, subtree: true }) // figures make more of them
})

/** What of this may be wider than the page. */
function watch(part) {
  for (const box of part.querySelectorAll("pre, .still, table.docutils, .table-wrapper, .sheet, .picture")) watcher.observe(box)
}

// Of each list beside a page, the entry of where the reader is stays in view.
function follow(list, entry) {
  const here = document.querySelector(entry), box = document.querySelector(list)
  if (!here || !box?.clientHeight) return
  const above = here.getBoundingClientRect().top - box.getBoundingClientRect().top
  if (above < 40 || above > box.clientHeight - 60) box.scrollTop += above - box.clientHeight / 3
}

addEventListener("load", () => {
  follow(".sidebar-scroll", ".sidebar-tree .current-page")
  addEventListener("scroll", () => follow(".toc-scroll", ".toc-tree .scroll-current"), { passive: true })
  toSought()
})

/** After a search, without a place: the section that its words are most in. One with every word comes before one full of one of them. */
function toSought() {
  const body = document.querySelector("article section")
  if (!SOUGHT.length || location.hash || !body) return
  let best = body, most = 0
  for (const section of body.querySelectorAll("section")) {
    const own = [...section.children].filter(part => part.tagName !== "SECTION").map(part => part.textContent.toLowerCase())
    const counts = SOUGHT.map(word => Math.min(9, own.join(" ").split(word).length - 1 + 4 * (own[0].split(word).length - 1)))
    const worth = counts.reduce((sum, many) => sum + many + 100 * (many > 0), 0)
    if (worth > most) [best, most] = [section, worth]
  }
  if (best !== body) best.scrollIntoView({ behavior: "instant" })
}

/** Do it once a figure has been in view for a second, where it costs little: on a computer, unless it is to save data. */
function prefetch(figure, does) {
  if (!matchMedia("(hover: hover)").matches || navigator.connection?.saveData) return
  let soon
  new IntersectionObserver(([seen], watching) => {
    clearTimeout(soon)
    if (seen.isIntersecting) soon = setTimeout(() => (watching.disconnect(), does()), 1000)
  }).observe(figure)
}

const watcher = new ResizeObserver(seen => {
  for (const { target } of seen) {
    const wide = target.scrollWidth > target.clientWidth + 1
    target.classList.toggle("wide", wide)
    if (wide && !target.hasAttribute("tabindex")) target.setAttribute("tabindex", 0)
  }
})

const PHONE = matchMedia("(max-width: 600px)")

document.addEventListener("load", ({ target }) => {
  if (target.dataset?.narrow && PHONE.matches && target.getAttribute("width") > target.parentElement.clientWidth) stack(target)
}, true)

/** In a picture's place its parts, in rows one below the other. */
function stack(image) {
  const theme = image.classList[0]
  const files = [...image.parentElement.querySelectorAll(`img.${theme}`)]
  const rows = image.dataset.narrow.split(";").map(row => made("row", ...row.split(" ").map(part => cutOut(files, part.split(",")))))
  const stacked = made(`stacked ${theme}`, ...rows)
  files[0].replaceWith(stacked)
  for (const file of files) file.remove()
  for (const shown of rows[0].querySelectorAll("img")) shown.alt = image.alt
  watcher.observe(stacked)
}

function cutOut(files, [x, y, wide, high]) {
  const size = file => ["width", "height"].map(side => file.getAttribute(side))
  const part = made("part", ...files.map(file => Object.assign(new Image(...size(file)), { src: file.src, alt: "" })))
  part.style.cssText = `width: ${wide}px; height: ${high}px`
  part.firstChild.style.marginTop = `${-y}px`
  for (const image of part.children) image.style.marginLeft = `${-x}px`
  return part
}

function made(name, ...children) {
  const box = document.createElement("div")
  box.className = name
  box.append(...children)
  return box
}
