// On every page: on a phone, a picture's before stands above its after; what is wider than the page can be scrolled by keyboard, and says so;
// and a screen reader gets the names and levels that the theme leaves out.

addEventListener("DOMContentLoaded", () => {
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) heading.setAttribute("aria-level", "2")
  for (const [part, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "This page"]]) document.querySelector(part)?.setAttribute("aria-label", name)
  for (const head of document.querySelectorAll("th")) if (!head.textContent.trim()) head.replaceWith(document.createElement("td"))
  if (!document.querySelector("h1")) {
    const title = document.createElement("h1")
    title.textContent = document.title.split(" - ")[0]
    document.querySelector("article")?.prepend(title)
  }
  for (const box of document.querySelectorAll("pre, .still, table.docutils, .table-wrapper, .sheet")) watcher.observe(box)
})

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
